// Runs CUDA kernels for Hopper GPUs on a CPU; cuda_emulator.py puts a translated kernel after this text.
//
// A thread of a block is a fiber, and blocks run one after another. Warps run in a random order. Asynchronous copies and
// products run at a random time between their issue and the wait for them, so that a missing wait gives wrong numbers.
// Shared memory starts as NaN. A deadlock, an address outside shared memory, a barrier that is not initialized, one
// arrival too many and a missing fence are reported.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct uint2 { uint32_t x, y; };
struct __align__(16) uint4 { uint32_t x, y, z, w; };
struct Dim { int x = 1, y = 1, z = 1; };

constexpr uint32_t SHARED_BYTES = 227 * 1024;
constexpr int WARP = 32, MAX_WARPS = 32;
constexpr size_t STACK_BYTES = 256 * 1024;

// -- threads ------------------------------------------------------------------------------------------

struct WarpgroupProduct {                   // rows in shared memory
    float* sums;
    int columns;
    uint64_t rows, weights;                 // descriptors
    bool is_done;
};
struct Copy {
    uint32_t to;
    const void* from;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Dim thread;
    bool has_ended = false;
    std::function<bool()> is_ready;         // empty: not waiting
    std::vector<WarpgroupProduct> open_products;
    std::vector<std::vector<WarpgroupProduct>> products;
    std::vector<Copy> open_copies;
    std::vector<std::vector<Copy>> copies;
    std::vector<uint32_t> unfenced;         // chunks that it copied since its last fence
};
struct Meeting {
    int arrived = 0;
    uint32_t round = 0;
};

static int removed;                         // number of the statement that the kernels leave out; 0: none
static Fiber* current;                      // null: a copy runs
static Dim block_index, grid_size, block_size;
static ucontext_t scheduler;
static std::mt19937 generator;
static std::string failure;
static std::function<void()> kernel_call;
static std::vector<std::function<void()>> bulk_copies;
static Meeting block_meetings[16], warp_meetings[MAX_WARPS];
static uint32_t exchanged[MAX_WARPS][WARP][6];
__align__(1024) uint8_t shared[SHARED_BYTES];
static bool is_unfenced[SHARED_BYTES / 16];  // chunks that products may not read yet

#define threadIdx (current->thread)
#define blockIdx block_index
#define gridDim grid_size
#define blockDim block_size

static int lane() { return threadIdx.x % WARP; }
static int warp() { return threadIdx.x / WARP; }
static bool coin() { return generator() & 1; }

static void switch_away() {
    Fiber* self = current;
    swapcontext(&self->context, &scheduler);
    current = self;
}
static void fail(const char* message) {
    failure = message;
    if (current) current->has_ended = true, switch_away();
}
static void wait_until(std::function<bool()> is_ready) {
    while (!is_ready()) current->is_ready = is_ready, switch_away();
    current->is_ready = nullptr;
}
static void meet(Meeting& meeting, int count) {
    const uint32_t round = meeting.round;
    if (++meeting.arrived == count) meeting.arrived = 0, meeting.round++;
    else wait_until([&meeting, round] { return meeting.round != round; });
}
static void __syncthreads() { meet(block_meetings[0], block_size.x); }
static void __syncwarp() { meet(warp_meetings[warp()], WARP); }

static uint8_t* shared_at(uint32_t address, uint32_t size) {
    if (address > SHARED_BYTES - size) fail("an address is outside shared memory");
    return shared + address;
}
static uint64_t __cvta_generic_to_shared(const void* pointer) { return (const uint8_t*)pointer - shared; }

template <class T>
static T shuffled(T value, int from) {
    memcpy(exchanged[warp()][lane()], &value, sizeof value);
    __syncwarp();
    memcpy(&value, exchanged[warp()][from % WARP], sizeof value);
    __syncwarp();
    return value;
}
template <class T>
static T __shfl_sync(uint32_t, T value, int from) { return shuffled(value, from); }
template <class T>
static T __shfl_xor_sync(uint32_t, T value, int reach) { return shuffled(value, lane() ^ reach); }

// -- numbers ------------------------------------------------------------------------------------------

static float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static float __int_as_float(int bits) { return __uint_as_float(bits); }
static uint32_t float_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fdividef(float a, float b) { return a / b; }
#define __expf expf                         // C libraries declare functions of these names
#define rsqrtf(x) (1.0f / sqrtf(x))
static int min(int a, int b) { return std::min(a, b); }
static int max(int a, int b) { return std::max(a, b); }
static uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T>
static T __ldg(const T* from) { return *from; }
template <class T>
static T __ldcg(const T* from) { return *from; }
static uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t both = (uint64_t)high << 32 | low;
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return bits;
}

static uint16_t to_bfloat16(float x) {
    const uint32_t bits = float_bits(x);
    return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float from_bfloat16(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
static float widen_float16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return bits >> 15 ? -size : size;
}
static const std::vector<float> FLOAT16_NUMBERS = [] {
    std::vector<float> numbers;
    for (int bits = 0; bits < 65536; bits++) numbers.push_back(widen_float16(bits));
    return numbers;
}();
static float from_float16(uint16_t bits) { return FLOAT16_NUMBERS[bits]; }
static uint16_t to_float16(float x) {       // saturates
    if (std::isnan(x)) return 0x7fff;
    const float size = std::min(fabsf(x), 65504.0f);
    const int exponent = size ? std::max(std::ilogb(size), -14) : -14;
    const uint32_t count = nearbyintf(ldexpf(size, 10 - exponent));  // 1024 and more: a normal number
    const uint32_t bits = count + (exponent + 14) * 1024;
    return (std::signbit(x) ? 0x8000 : 0) | bits;
}
static float number(const void* from) {
    uint16_t bits;
    memcpy(&bits, from, 2);
#ifdef BFLOAT16
    return from_bfloat16(bits);
#else
    return from_float16(bits);
#endif
}

// -- products of warpgroups ---------------------------------------------------------------------------

// Where hardware stores a byte of rows of 128 bytes.
static uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// The 16 numbers of an operand's row. An operand without swizzle has eight numbers of eight rows, at two distances; with
// swizzle, rows of 128 bytes. Eight numbers of a row are together.
static void read_operand(uint64_t descriptor, int row, float (&numbers)[16]) {
    const uint32_t start = (descriptor & 0x3fff) << 4, next = (descriptor >> 16 & 0x3fff) << 4, group = (descriptor >> 32 & 0x3fff) << 4;
    const bool is_swizzled = descriptor >> 62 == 1;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t address = is_swizzled ? swizzled(start + row / 8 * group + row % 8 * 128 + half * 16)
                                             : start + half * next + row / 8 * group + row % 8 * 16;
        const uint8_t* from = shared_at(address, 16);
        if (is_unfenced[address / 16]) fail("a fence is missing");
        for (int k = 0; k < 8; k++) numbers[half * 8 + k] = number(from + 2 * k);
    }
}
// Adds a thread's part: two rows in groups of eight, two columns of every eight.
static void add_products(float* sums, int columns, uint64_t weights, const float (&rows)[2][16]) {
    float numbers[16];
    for (int i = 0; i < columns / 4; i++) {
        read_operand(weights, i / 2 * 8 + 2 * (lane() % 4) + i % 2, numbers);
        for (int later = 0; later < 2; later++) {
            float& sum = sums[i / 2 * 4 + later * 2 + i % 2];
            for (int k = 0; k < 16; k++) sum += rows[later][k] * numbers[k];
        }
    }
}
static void execute(WarpgroupProduct& product) {
    const int row = warp() % 4 * 16 + lane() / 4;
    if (!product.is_done) {
        float rows[2][16];
        for (int later = 0; later < 2; later++) read_operand(product.rows, row + 8 * later, rows[later]);
        add_products(product.sums, product.columns, product.weights, rows);
    }
    product.is_done = true;
}
template <int N>
static void wgmma(float (&sums)[N / 2], uint64_t rows, uint64_t weights) {
    bool is_next = true;                    // products run in order
    for (auto& group : current->products)
        for (auto& product : group) is_next &= product.is_done;
    for (auto& product : current->open_products) is_next &= product.is_done;
    current->open_products.push_back({sums, N, rows, weights, false});
    if (is_next && coin()) execute(current->open_products.back());
    if (generator() % 8 == 0) switch_away();
}
// Rows in registers: runs at once.
template <int N>
static void wgmma(float (&sums)[N / 2], const uint32_t* rows, uint64_t weights) {
    memcpy(exchanged[warp()][lane()], rows, 16);
    __syncwarp();
    float numbers[2][16];
    for (int later = 0; later < 2; later++)
        for (int k = 0; k < 16; k++)
            numbers[later][k] = number((const uint16_t*)&exchanged[warp()][lane() / 4 * 4 + k % 8 / 2][k / 8 * 2 + later] + k % 2);
    __syncwarp();
    add_products(sums, N, weights, numbers);
}

// -- instructions -------------------------------------------------------------------------------------

struct Barrier {
    int16_t expected, pending;              // arrivals
    uint32_t phase : 1;
    int32_t num_bytes : 31;
};
static Barrier& barrier_at(uint32_t address) { return *(Barrier*)shared_at(address, sizeof(Barrier)); }
static void update(Barrier& barrier) {
    if (barrier.expected <= 0) fail("a barrier is not initialized");
    if (barrier.pending < 0) fail("a barrier has too many arrivals");
    if (barrier.pending == 0 && barrier.num_bytes == 0) barrier.pending = barrier.expected, barrier.phase ^= 1;
}

namespace ptx {
static void nothing(...) {}
static void init_barrier(uint32_t barrier, uint32_t count) { barrier_at(barrier) = {(int16_t)count, (int16_t)count, 0, 0}; }
static void expect_bytes(uint32_t address, uint32_t num_bytes) {
    Barrier& barrier = barrier_at(address);
    barrier.num_bytes += num_bytes, barrier.pending--;
    update(barrier);
}
static void arrive(uint32_t address) {
    barrier_at(address).pending--;
    update(barrier_at(address));
    if (coin()) switch_away();
}
static void wait_barrier(uint32_t address, uint32_t parity, uint32_t) {
    wait_until([=] { return barrier_at(address).phase != parity; });
}
static void sync_threads(int number, int count) { meet(block_meetings[number], count); }

static void copy_bulk(uint32_t to, const void* from, uint32_t num_bytes, uint32_t barrier) {
    uint8_t* target = shared_at(to, num_bytes);
    if (to % 16 || (uintptr_t)from % 16 || num_bytes % 16) fail("a bulk copy is not aligned");
    bulk_copies.push_back([=] {
        memcpy(target, from, num_bytes);
        barrier_at(barrier).num_bytes -= num_bytes;
        update(barrier_at(barrier));
    });
}
// A tile of 16-bit numbers, which are 0 outside the tensor. `map` is written by EmulatedDriver.map_tiles.
static void copy_tensor(uint32_t to, const void* map, std::vector<int64_t> first, uint32_t barrier) {
    const uint64_t* words = (const uint64_t*)map;
    const uint64_t *size = words + 2, *stride = words + 5, *tile = words + 8;
    if (words[1] != first.size() || to % 128) fail("a tile does not fit its map");
    first.resize(3);
    uint32_t num_bytes = 0;
    std::vector<std::pair<uint32_t, uint16_t>> numbers;
    for (int64_t z = 0; z < tile[2]; z++)
        for (int64_t y = 0; y < tile[1]; y++)
            for (int64_t x = 0; x < tile[0]; x++, num_bytes += 2) {
                const int64_t at[3] = {first[0] + x, first[1] + y, first[2] + z};
                bool is_inside = true;
                for (int i = 0; i < 3; i++) is_inside &= at[i] >= 0 && at[i] < size[i];
                const uint8_t* from = (const uint8_t*)words[0] + at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
                numbers.push_back({swizzled(to + num_bytes), is_inside ? *(const uint16_t*)from : 0});
            }
    shared_at(to, num_bytes);
    bulk_copies.push_back([=] {
        for (const auto& [address, bits] : numbers) memcpy(shared + address, &bits, 2);
        barrier_at(barrier).num_bytes -= num_bytes;
        update(barrier_at(barrier));
    });
}
static void copy_tile2(uint32_t to, const void* map, int x, int y, uint32_t barrier) { copy_tensor(to, map, {x, y}, barrier); }
static void copy_tile3(uint32_t to, const void* map, int x, int y, int z, uint32_t barrier) { copy_tensor(to, map, {x, y, z}, barrier); }
static void finish(const Copy& copy) {
    memcpy(shared + copy.to, copy.from, 16);
    is_unfenced[copy.to / 16] = true;
    current->unfenced.push_back(copy.to / 16);
}
static void copy_chunk(uint32_t to, const void* from) {
    shared_at(to, 16);
    if (to % 16 || (uintptr_t)from % 16) fail("a copy is not aligned");
    if (coin()) finish({to, from});
    else current->open_copies.push_back({to, from});
}
static void commit_copies() { current->copies.push_back(std::exchange(current->open_copies, {})); }
static void wait_copies(size_t num_pending) {
    auto& groups = current->copies;
    for (; groups.size() > num_pending; groups.erase(groups.begin()))
        for (const Copy& copy : groups[0]) finish(copy);
}
static void fence_shared() {
    for (uint32_t chunk : current->unfenced) is_unfenced[chunk] = false;
    current->unfenced.clear();
}

static void commit_products() { current->products.push_back(std::exchange(current->open_products, {})); }
static void wait_products(size_t num_pending) {
    auto& groups = current->products;
    for (; groups.size() > num_pending; groups.erase(groups.begin()))
        for (WarpgroupProduct& product : groups[0]) execute(product);
    __syncwarp();                           // an instruction of the whole warp
}

static void pack_float16(uint32_t& both, float high, float low) { both = (uint32_t)to_float16(high) << 16 | to_float16(low); }
static void unpack_float16(float& low, float& high, uint32_t both) { low = from_float16(both), high = from_float16(both >> 16); }
static void pack_bfloat16(uint32_t& both, float high, float low) { both = (uint32_t)to_bfloat16(high) << 16 | to_bfloat16(low); }
static void round_bfloat16(uint16_t& bits, float x) { bits = to_bfloat16(x); }
static void raise_two(float& power, float x) { power = exp2f(x); }
static void divide(float& quotient, float a, float b) { quotient = a / b; }
static void invert_root(float& found, float x) { found = rsqrtf(x); }

// Four matrices of 8 rows and 8 numbers; eight lanes have the addresses of a matrix's rows.
static void load_matrices(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t address) {
    uint32_t* found[4] = {&r0, &r1, &r2, &r3};
    exchanged[warp()][lane()][0] = address;
    __syncwarp();
    for (int i = 0; i < 4; i++) memcpy(found[i], shared_at(exchanged[warp()][8 * i + lane() / 4][0], 16) + lane() % 4 * 4, 4);
    __syncwarp();
}
// 16 rows, 8 columns and 16 bfloat16 numbers.
static void multiply(float& s0, float& s1, float& s2, float& s3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t own[6] = {a0, a1, a2, a3, b0, b1};
    float* sums[4] = {&s0, &s1, &s2, &s3};
    memcpy(exchanged[warp()][lane()], own, sizeof own);
    __syncwarp();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const uint32_t row = exchanged[warp()][lane() / 4 * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
            const uint32_t column = exchanged[warp()][(2 * (lane() % 4) + i % 2) * 4 + k % 8 / 2][4 + k / 8];
            *sums[i] += from_bfloat16(row >> k % 2 * 16) * from_bfloat16(column >> k % 2 * 16);
        }
    __syncwarp();
}
}  // namespace ptx

// -- launches -----------------------------------------------------------------------------------------

static void begin_thread() {
    kernel_call();
    for (auto& group : current->products)
        for (auto& product : group)
            if (!product.is_done) fail("a product was never waited for");
    current->has_ended = true;
    switch_away();
}

static void run_warp(Fiber* fibers, bool& has_run) {
    for (int i = 0; i < WARP && failure.empty(); i++) {
        current = fibers + i;
        if (current->has_ended || (current->is_ready && !current->is_ready())) continue;
        has_run = true;
        swapcontext(&scheduler, &current->context);
    }
}
static void run_copy() {
    current = nullptr;
    std::swap(bulk_copies[generator() % bulk_copies.size()], bulk_copies.back());
    const auto copy = std::move(bulk_copies.back());
    bulk_copies.pop_back();
    copy();
}
static void run_block() {
    std::vector<Fiber> fibers(block_size.x);
    std::vector<int> order(block_size.x / WARP);
    memset(shared, 0xff, sizeof shared);    // NaN
    memset(is_unfenced, 0, sizeof is_unfenced);
    bulk_copies.clear();
    std::fill(block_meetings, block_meetings + 16, Meeting());
    std::fill(warp_meetings, warp_meetings + MAX_WARPS, Meeting());
    for (int i = 0; i < block_size.x; i++) {
        Fiber& fiber = fibers[i];
        fiber.thread = {i, 0, 0};
        fiber.stack.reset(new char[STACK_BYTES]);  // not initialized: most pages are never used
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fiber.context, begin_thread, 0);
    }
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    int slow = 0;                           // a warp that seldom runs, unless all others wait
    for (int round = 0; failure.empty() && !std::all_of(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return fiber.has_ended; }); round++) {
        bool has_run = false;
        if (round % 32 == 0) slow = generator() % order.size();
        std::shuffle(order.begin(), order.end(), generator);
        for (int number : order)
            for (int turns = number == slow && generator() % 16 ? 0 : 1 + generator() % 40; turns; turns--) run_warp(&fibers[number * WARP], has_run);
        while (failure.empty() && !bulk_copies.empty() && (!has_run || generator() % 4 == 0)) run_copy(), has_run = true;
        if (!has_run) run_warp(&fibers[slow * WARP], has_run);
        if (!has_run && failure.empty()) failure = "deadlock";
    }
}

// Returns an error or an empty text.
template <class Request>
static const char* launch(void (*kernel)(Request), const Request& request, Dim grid, int num_threads, unsigned seed) {
    generator.seed(seed);
    failure.clear();
    grid_size = grid, block_size = {num_threads, 1, 1};
    kernel_call = [&] { kernel(request); };
    for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
        for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
            for (block_index.x = 0; block_index.x < grid.x && failure.empty(); block_index.x++) run_block();
    return failure.c_str();
}
