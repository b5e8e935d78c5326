// The codec's large convolutions for Hopper GPUs: products of warpgroups (wgmma), float16 with float32 sums.
//
// Activations are [batch, time, channels]. A causal layer reads inputs before the chunk from its slot's history.
// Every output is summed in the order of taps and channels, 16 at a time, like the Triton kernels do: samples do
// not depend on which kernel computes a layer.
//
// Operands in shared memory have no swizzle: eight channels of all rows, then the next eight channels. The tensor cores
// read eight rows at a time, fast only from multiples of 128 bytes. A residual unit copies a window of inputs once for
// all taps; a tap shifts it by some rows, so these operands go through registers.
//
// codec_wgmma.py inserts `wgmma<N>` and `wgmma_registers<N>`: 64 rows times N columns times 16 channels.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

constexpr int WARPGROUP = 128;              // threads
constexpr u32 CHUNK = 16;                   // bytes: eight channels of one row
constexpr u32 ROW_GROUP = 8 * CHUNK;        // bytes of eight rows
constexpr u32 MAX_POLLS = 1u << 24;
constexpr float LARGEST = 65504.0f;         // in float16
constexpr float TO_INTEGER = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer

// -- numbers -----------------------------------------------------------------------------------------

DEVICE u32 pack(float low, float high) {
    u32 both;
    low = fminf(fmaxf(low, -LARGEST), LARGEST);
    high = fminf(fmaxf(high, -LARGEST), LARGEST);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE float2 unpack(u32 both) {
    float2 value;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(value.x), "=f"(value.y) : "r"(both));
    return value;
}

// `_snake` of codec_kernels.py, operation by operation.
DEVICE float snake(float x, float frequency, float inverse_gain) {
    float r = fmaf(x, frequency, __fsub_rn(TO_INTEGER, fmaf(x, frequency, TO_INTEGER)));
    float square = __fmul_rn(r, r);
    float p = fmaf(0.07722016f, square, -0.59804517f);
    p = fmaf(p, square, 2.5500314f);
    p = fmaf(p, square, -5.167707f);
    p = fmaf(p, square, 3.1415925f);
    float wave = __fmul_rn(p, r);
    return fmaf(inverse_gain, __fmul_rn(wave, wave), x);
}

// -- shared memory ------------------------------------------------------------------------------------

extern __shared__ __align__(128) u8 shared[];

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEVICE void copy_chunk(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Makes this thread's writes visible to the tensor cores.
DEVICE void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void init_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A barrier that never completes becomes an error of the launch instead of a hang.
DEVICE void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred done, late; .reg .u32 polls;\n"
        "mov.u32 polls, 0;\n"
        "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "add.u32 polls, polls, 1;\n"
        "setp.eq.u32 late, polls, %2;\n"
        "@!late bra again;\n"
        "trap;\n"
        "ready: }" ::"r"(barrier), "r"(parity), "n"(MAX_POLLS) : "memory");
}

// One thread copies weights; the barrier counts its arrival and the bytes.
DEVICE void copy_weights(u32 to, const void* from, u32 num_bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(num_bytes), "r"(barrier) : "memory");
}

DEVICE void sync_threads(int number, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

// -- products -----------------------------------------------------------------------------------------

// An operand of 16 channels: `next` is the distance in bytes from eight channels to the next eight.
DEVICE u64 operand(u32 address, u32 next) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(next >> 4) << 16 | (u64)(ROW_GROUP >> 4) << 32;
}

// 16 channels of a warp's 16 rows. `address` is the warp's first row; `next` as above.
DEVICE void load_rows(u32 (&a)[4], u32 address, u32 next) {
    const u32 lane = threadIdx.x % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address + lane % 16 * CHUNK + lane / 16 * next) : "memory");
}

DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

template <int N>
DEVICE void wgmma(float (&sums)[N / 2], u64 a, u64 b);
template <int N>
DEVICE void wgmma_registers(float (&sums)[N / 2], const u32* a, u64 b);
// -- PRODUCTS OF THE HOST --

template <int COUNT>
DEVICE void clear(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = 0.0f;
}

// -- results ------------------------------------------------------------------------------------------

struct Columns {                            // of one layer's output
    const float *bias, *frequency, *inverse_gain;
};

DEVICE void load_column(float* to, int next, int place, const Columns& columns, int column) {
    to[place] = columns.bias[column], to[next + place] = columns.frequency[column];
    to[2 * next + place] = columns.inverse_gain[column];
}

struct Rows {
    const u16* residual;                    // or null
    u16 *out, *active;                      // before and after the activation, or null
};

DEVICE void load8(float (&to)[8], const float* from) {
    float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// Adds the residual to eight neighbouring columns of a row and stores them.
DEVICE void store8(float (&y)[8], const Rows& rows, const uint4& residual, s64 at, const float (&frequency)[8],
                   const float (&gain)[8]) {
    if (rows.residual) {
        u32 words[4] = {residual.x, residual.y, residual.z, residual.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = unpack(words[i]);
            y[2 * i] += pair.x, y[2 * i + 1] += pair.y;
        }
    }
    if (rows.out)
        *(uint4*)(rows.out + at) = make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
    if (rows.active) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = snake(y[i], frequency[i], gain[i]);
        *(uint4*)(rows.active + at) = make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
    }
}

DEVICE uint4 load_residual(const Rows& rows, s64 at, bool is_row) {
    return rows.residual && is_row ? __ldg((const uint4*)(rows.residual + at)) : make_uint4(0, 0, 0, 0);
}

// Stores 64 rows of sums. `at` is the element of the thread's first row and column; the weights' columns are in an
// order that gives a thread eight neighbouring columns.
template <int COUNT>
DEVICE void store_sums(const float (&sums)[COUNT], const Columns& columns, const Rows& rows, s64 at, int width,
                       bool is_row, bool is_later_row) {
    uint4 residual[2] = {load_residual(rows, at, is_row), load_residual(rows, at + 8 * (s64)width, is_later_row)};
#pragma unroll
    for (int q = 0; q < COUNT / 16; q++) {
        float bias[8], frequency[8], gain[8];
        int n = 32 * q + 8 * (threadIdx.x % 4);
        load8(bias, columns.bias + n);
        if (rows.active) {
            load8(frequency, columns.frequency + n);
            load8(gain, columns.inverse_gain + n);
        }
#pragma unroll
        for (int later = 0; later < 2; later++) {
            const bool is_here = later ? is_later_row : is_row;
            const s64 here = at + 32 * q + (s64)later * 8 * width;
            const uint4 given = residual[later];
            if (q + 1 < COUNT / 16) residual[later] = load_residual(rows, here + 32, is_here);  // loads one step ahead
            float y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = sums[16 * q + 4 * (i / 2) + 2 * later + i % 2] + bias[i];
            if (is_here) store8(y, rows, given, here, frequency, gain);
        }
    }
}

// -- a convolution ------------------------------------------------------------------------------------

struct Convolution {                       // ConvolutionArguments of codec_wgmma.py
    const u16 *x, *history;
    const s64* slots;
    const u16* weight;                      // [tiles, taps, channels / 64, 8, TILE, 8]
    Columns columns;
    Rows rows;
    s64 history_stride;
    int num_rows, length, in_size, out_size, taps, dilation;
};

template <int TILE>
struct ConvolutionShared {
    static constexpr int ROWS = 256, DEPTH = 32, STAGES = 7, IN_FLIGHT = 4;
    static constexpr u32 A_NEXT = ROWS * CHUNK;
    static constexpr u32 A_BYTES = DEPTH / 8 * A_NEXT;
    static constexpr u32 B_NEXT = TILE * CHUNK;
    static constexpr u32 B_BYTES = DEPTH / 8 * B_NEXT;
    static constexpr u32 STAGE = A_BYTES + B_BYTES;
    static constexpr u32 POINTERS = STAGES * STAGE;
    static constexpr u32 PARAMETERS = POINTERS + ROWS * 8;
    static constexpr u32 BARRIERS = PARAMETERS + 3 * TILE * 4;
    static constexpr u32 BYTES = BARRIERS + STAGES * 16;
};

// Two warpgroups sum 128 rows each, a third one copies: rows with cp.async, weights in bulk.
template <int TILE>
DEVICE void convolve(const Convolution& layer) {
    using Shared = ConvolutionShared<TILE>;

    const u32 base = shared_address(shared), full = base + Shared::BARRIERS, empty = full + Shared::STAGES * 8;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const int first_row = blockIdx.y * Shared::ROWS, first_column = blockIdx.x * TILE;
    const int num_blocks = layer.in_size / Shared::DEPTH, num_steps = layer.taps * num_blocks;
    float* parameters = (float*)(shared + Shared::PARAMETERS);
    for (int i = threadIdx.x; i < TILE; i += blockDim.x) load_column(parameters, TILE, i, layer.columns, first_column + i);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shared::STAGES; i++) init_barrier(full + 8 * i, WARPGROUP + 1), init_barrier(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warpgroup == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        u64* pointers = (u64*)(shared + Shared::POINTERS);
        const int reach = (layer.taps - 1) * layer.dilation;
        const u8* weight = (const u8*)layer.weight + (s64)blockIdx.x * num_steps * Shared::B_BYTES;
        int times[2];
        const u16 *inputs[2], *histories[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = min(first_row + thread + WARPGROUP * i, layer.num_rows - 1), batch = row / layer.length;
            times[i] = row - batch * layer.length;
            inputs[i] = layer.x + (s64)row * layer.in_size;
            histories[i] = reach ? layer.history + layer.slots[batch] * layer.history_stride : layer.x;
        }
        for (int step = 0, tap = 0, block = 0; step < num_steps; step++) {
            if (block == 0) {
                int shift = tap * layer.dilation - reach;
                sync_threads(1, WARPGROUP);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int at = times[i] + shift;
                    pointers[thread + WARPGROUP * i] =
                        (u64)(at >= 0 ? inputs[i] + (s64)shift * layer.in_size : histories[i] + (s64)(at + reach) * layer.in_size);
                }
                sync_threads(1, WARPGROUP);
            }
            const u32 stage = step % Shared::STAGES, round = step / Shared::STAGES;
            const u32 to = base + stage * Shared::STAGE;
            wait(empty + 8 * stage, (round & 1) ^ 1);
            if (thread == 0)
                copy_weights(to + Shared::A_BYTES, weight + (s64)step * Shared::B_BYTES, Shared::B_BYTES, full + 8 * stage);
            const int column = thread % 32 / 8, row = thread / 32 * 8 + thread % 8;  // eight rows: no bank conflicts
#pragma unroll
            for (int i = 0; i < Shared::ROWS; i += 32)
                copy_chunk(to + column * Shared::A_NEXT + (row + i) * CHUNK,
                           (const u16*)pointers[row + i] + block * Shared::DEPTH + column * 8);
            commit_copies();
            if (step >= Shared::IN_FLIGHT) {
                wait_copies<Shared::IN_FLIGHT>();
                fence_shared();
                arrive(full + 8 * ((step - Shared::IN_FLIGHT) % Shared::STAGES));
            }
            if (++block == num_blocks) block = 0, tap++;
        }
        wait_copies<0>();
        fence_shared();
        for (int step = max(num_steps - Shared::IN_FLIGHT, 0); step < num_steps; step++) arrive(full + 8 * (step % Shared::STAGES));
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float sums[2][TILE / 2];
    clear(sums[0]);
    clear(sums[1]);
    for (int step = 0; step < num_steps; step++) {
        const u32 stage = step % Shared::STAGES, from = base + stage * Shared::STAGE;
        wait(full + 8 * stage, step / Shared::STAGES & 1);
        begin_products();
#pragma unroll
        for (int k = 0; k < Shared::DEPTH / 8; k += 2) {
            u64 b = operand(from + Shared::A_BYTES + k * Shared::B_NEXT, Shared::B_NEXT);
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma<TILE>(sums[half], operand(from + k * Shared::A_NEXT + (warpgroup * 128 + half * 64) * CHUNK, Shared::A_NEXT), b);
        }
        commit_products();
        wait_products<1>();
        if (step && thread % 32 == 0) arrive(empty + 8 * ((step - 1) % Shared::STAGES));
    }
    wait_products<0>();
    const Columns columns = {parameters, parameters + TILE, parameters + 2 * TILE};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first_row + warpgroup * 128 + half * 64 + thread / 32 * 16 + thread % 32 / 4;
        s64 at = (s64)row * layer.out_size + first_column + 8 * (thread % 4);
        store_sums(sums[half], columns, layer.rows, at, layer.out_size, row < layer.num_rows, row + 8 < layer.num_rows);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) convolution_192(const __grid_constant__ Convolution layer) {
    convolve<192>(layer);
}

extern "C" __global__ void __launch_bounds__(384, 1) convolution_96(const __grid_constant__ Convolution layer) {
    convolve<96>(layer);
}

// -- residual units -----------------------------------------------------------------------------------

struct Unit {                               // UnitArguments of codec_wgmma.py
    const u16 *x, *history;                 // after the first activation
    const s64* slots;
    const u16* weight;                      // [taps + 1, channels / DEPTH, DEPTH / 8, channels, 8]; the last is the linear layer's
    Columns hidden, columns;
    Rows rows;
    s64 history_stride;
    int num_streams, length, dilation;
};

constexpr int TAPS = 7, MAX_REACH = 54;

// Copies the inputs that `ROWS` rows from time `first` on need.
template <int CHANNELS, int ROWS>
DEVICE void load_window(u32 to, u32 next, const Unit& unit, int stream, int first, int thread, int num_threads) {
    constexpr int CHUNKS = CHANNELS / 8;
    const int reach = (TAPS - 1) * unit.dilation;
    const u16* inputs = unit.x + (s64)stream * unit.length * CHANNELS;
    const u16* history = unit.history + unit.slots[stream] * unit.history_stride;
    for (int i = thread; i < (ROWS + reach) * CHUNKS; i += num_threads) {
        int row = i / CHUNKS, column = i % CHUNKS, at = min(first - reach + row, unit.length - 1);
        const u16* from = at >= 0 ? inputs + (s64)at * CHANNELS : history + (s64)(at + reach) * CHANNELS;
        copy_chunk(to + column * next + row * CHUNK, from + column * 8);
    }
    commit_copies();
}

// Adds the products of 16 channels of a warpgroup's 64 rows. The products of the previous call may still be running
// and those of earlier calls have ended, so callers alternate between two sets of registers.
template <int N>
DEVICE void multiply(float (&sums)[N / 2], u32 (&rows)[4], u32 from, u32 next, u64 weights) {
    load_rows(rows, from, next);
    begin_products();
    wgmma_registers<N>(sums, rows, weights);
    commit_products();
    wait_products<1>();
}

// The activated hidden numbers of 64 rows, in the registers of a product's first operand.
template <int COUNT>
DEVICE void hide(u32 (&hidden)[COUNT / 2], const float (&sums)[COUNT], const Columns& columns) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        int n = 8 * j + 2 * (threadIdx.x % 4);
        float2 bias = *(const float2*)(columns.bias + n), frequency = *(const float2*)(columns.frequency + n);
        float2 gain = *(const float2*)(columns.inverse_gain + n);
#pragma unroll
        for (int later = 0; later < 2; later++)
            hidden[2 * j + later] = pack(snake(sums[4 * j + 2 * later] + bias.x, frequency.x, gain.x),
                                         snake(sums[4 * j + 2 * later + 1] + bias.y, frequency.y, gain.y));
        if (j % 4 == 3) asm volatile("" ::: "memory");  // keeps the compiler from loading all parameters at once
    }
}

template <int CHANNELS>
DEVICE void load_parameters(float* to, const Unit& unit) {
    for (int i = threadIdx.x; i < CHANNELS; i += blockDim.x) {
        load_column(to, CHANNELS, i, unit.hidden, i);
        load_column(to + 3 * CHANNELS, CHANNELS, i, unit.columns, i);
    }
}

// Stores 64 rows of a unit from time `first` on.
template <int CHANNELS>
DEVICE void store_unit(const float (&sums)[CHANNELS / 2], const Unit& unit, const Columns& columns, int stream, int first) {
    const int thread = threadIdx.x % WARPGROUP, t = first + thread / 32 * 16 + thread % 32 / 4;
    const s64 at = ((s64)stream * unit.length + t) * CHANNELS + 8 * (thread % 4);
    store_sums(sums, columns, unit.rows, at, CHANNELS, t < unit.length, t + 8 < unit.length);
}

// 96 channels: all weights stay in shared memory. Three warpgroups compute a tile of 64 rows each, independently: some
// multiply while others activate.
struct NarrowShared {
    static constexpr int CHANNELS = 96, ROWS = 64, WARPGROUPS = 3;
    static constexpr u32 A_NEXT = (ROWS + MAX_REACH + 1) * CHUNK;  // odd number of chunks: no bank conflicts
    static constexpr u32 WINDOW = CHANNELS / 8 * A_NEXT;
    static constexpr u32 B_NEXT = CHANNELS * CHUNK;
    static constexpr u32 TAP = CHANNELS / 8 * B_NEXT;
    static constexpr u32 WINDOWS = (TAPS + 1) * TAP;
    static constexpr u32 PARAMETERS = WINDOWS + WARPGROUPS * WINDOW;
    static constexpr u32 BARRIER = PARAMETERS + 6 * CHANNELS * 4;
    static constexpr u32 BYTES = BARRIER + 8;
};

extern "C" __global__ void __launch_bounds__(NarrowShared::WARPGROUPS* WARPGROUP, 1)
    unit_96(const __grid_constant__ Unit unit) {
    using Shared = NarrowShared;
    const u32 base = shared_address(shared), barrier = base + Shared::BARRIER;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const u32 window = base + Shared::WINDOWS + warpgroup * Shared::WINDOW;
    const int tiles = (unit.length + Shared::ROWS - 1) / Shared::ROWS, num_tiles = unit.num_streams * tiles;
    int tile = blockIdx.x + gridDim.x * warpgroup;
    if (threadIdx.x == 0) {
        init_barrier(barrier, TAPS + 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < TAPS + 1; i++)
            copy_weights(base + i * Shared::TAP, (const u8*)unit.weight + i * Shared::TAP, Shared::TAP, barrier);
    }
    float* parameters = (float*)(shared + Shared::PARAMETERS);
    load_parameters<Shared::CHANNELS>(parameters, unit);
    const Columns hidden_columns = {parameters, parameters + 96, parameters + 192};
    const Columns columns = {parameters + 288, parameters + 384, parameters + 480};
    auto load_tile = [&] {
        if (tile < num_tiles)
            load_window<Shared::CHANNELS, Shared::ROWS>(window, Shared::A_NEXT, unit, tile / tiles, tile % tiles * Shared::ROWS, thread, WARPGROUP);
    };
    load_tile();
    __syncthreads();
    wait(barrier, 0);
    while (tile < num_tiles) {
        const int stream = tile / tiles, first = tile % tiles * Shared::ROWS;
        wait_copies<0>();
        sync_threads(1 + warpgroup, WARPGROUP);
        float sums[Shared::CHANNELS / 2];
        clear(sums);
        u32 rows[2][4];
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap++) {
#pragma unroll
            for (int k = 0; k < Shared::CHANNELS / 8; k += 2) {
                u32 from = window + k * Shared::A_NEXT + (thread / 32 * 16 + tap * unit.dilation) * CHUNK;
                u64 b = operand(base + tap * Shared::TAP + k * Shared::B_NEXT, Shared::B_NEXT);
                multiply<Shared::CHANNELS>(sums, rows[k / 2 % 2], from, Shared::A_NEXT, b);
            }
        }
        wait_products<0>();
        sync_threads(1 + warpgroup, WARPGROUP);
        tile += Shared::WARPGROUPS * gridDim.x;
        load_tile();
        u32 hidden[Shared::CHANNELS / 4];
        hide(hidden, sums, hidden_columns);
        clear(sums);
        begin_products();
#pragma unroll
        for (int k = 0; k < Shared::CHANNELS / 8; k += 2)
            wgmma_registers<96>(sums, hidden + 2 * k, operand(base + TAPS * Shared::TAP + k * Shared::B_NEXT, Shared::B_NEXT));
        commit_products();
        wait_products<0>();
        store_unit<Shared::CHANNELS>(sums, unit, columns, stream, first);
    }
}

// 192 channels: three warpgroups compute 64 rows each with the same weights, which a fourth one copies.
struct WideShared {
    static constexpr int CHANNELS = 192, ROWS = 192, WARPGROUPS = 3, DEPTH = 64, STAGES = 5;
    static constexpr int BLOCKS = CHANNELS / DEPTH, STEPS = TAPS * BLOCKS;
    static constexpr u32 A_NEXT = (ROWS + MAX_REACH + 1) * CHUNK;
    static constexpr u32 B_NEXT = CHANNELS * CHUNK;
    static constexpr u32 STAGE = DEPTH / 8 * B_NEXT;
    static constexpr u32 WINDOW = STAGES * STAGE;
    static constexpr u32 PARAMETERS = WINDOW + CHANNELS / 8 * A_NEXT;
    static constexpr u32 BARRIERS = PARAMETERS + 6 * CHANNELS * 4;
    static constexpr u32 BYTES = BARRIERS + (2 * STAGES + 2) * 8;
};

extern "C" __global__ void __launch_bounds__((WideShared::WARPGROUPS + 1) * WARPGROUP, 1)
    unit_192(const __grid_constant__ Unit unit) {
    using Shared = WideShared;
    const u32 base = shared_address(shared), full = base + Shared::BARRIERS, empty = full + Shared::STAGES * 8;
    const u32 window = base + Shared::WINDOW, window_full = empty + Shared::STAGES * 8, window_empty = window_full + 8;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const int tiles = (unit.length + Shared::ROWS - 1) / Shared::ROWS, num_tiles = unit.num_streams * tiles;
    constexpr int LOADERS = 96;             // threads that copy the window
    constexpr int READERS = 4 * Shared::WARPGROUPS;  // warps
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shared::STAGES; i++) init_barrier(full + 8 * i, 1), init_barrier(empty + 8 * i, READERS);
        init_barrier(window_full, LOADERS);
        init_barrier(window_empty, READERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    float* parameters = (float*)(shared + Shared::PARAMETERS);
    load_parameters<Shared::CHANNELS>(parameters, unit);
    const Columns hidden_columns = {parameters, parameters + 192, parameters + 384};
    const Columns columns = {parameters + 576, parameters + 768, parameters + 960};
    __syncthreads();
    if (warpgroup == Shared::WARPGROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (thread >= LOADERS) {
            if (thread > LOADERS) return;
            int step = 0;
            for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x)
                for (int i = 0; i < Shared::STEPS + Shared::BLOCKS; i++, step++) {
                    const int stage = step % Shared::STAGES;
                    wait(empty + 8 * stage, (step / Shared::STAGES & 1) ^ 1);
                    copy_weights(base + stage * Shared::STAGE, (const u8*)unit.weight + i * Shared::STAGE, Shared::STAGE, full + 8 * stage);
                }
            return;
        }
        u32 parity = 1;
        for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, parity ^= 1) {
            wait(window_empty, parity);
            load_window<Shared::CHANNELS, Shared::ROWS>(window, Shared::A_NEXT, unit, tile / tiles, tile % tiles * Shared::ROWS, thread, LOADERS);
            wait_copies<0>();
            arrive(window_full);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    const bool is_first_lane = thread % 32 == 0;
    int step = 0;
    u32 parity = 0;
    for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, parity ^= 1) {
        float sums[Shared::CHANNELS / 2];
        clear(sums);
        u32 rows[2][4];
        wait(window_full, parity);
#pragma unroll 1
        for (int i = 0; i < Shared::STEPS; i++, step++) {
            const u32 stage = step % Shared::STAGES;
            const u32 from = window + i % Shared::BLOCKS * (Shared::DEPTH / 8) * Shared::A_NEXT +
                             (warpgroup * 64 + thread / 32 * 16 + i / Shared::BLOCKS * unit.dilation) * CHUNK;
            wait(full + 8 * stage, step / Shared::STAGES & 1);
#pragma unroll
            for (int k = 0; k < Shared::DEPTH / 8; k += 2) {
                u64 b = operand(base + stage * Shared::STAGE + k * Shared::B_NEXT, Shared::B_NEXT);
                multiply<Shared::CHANNELS>(sums, rows[k / 2 % 2], from + k * Shared::A_NEXT, Shared::A_NEXT, b);
                if (k == 0 && i && is_first_lane) arrive(empty + 8 * ((step - 1) % Shared::STAGES));
            }
        }
        wait_products<0>();
        if (is_first_lane) arrive(empty + 8 * ((step - 1) % Shared::STAGES)), arrive(window_empty);
        u32 hidden[Shared::CHANNELS / 4];
        hide(hidden, sums, hidden_columns);
        clear(sums);
#pragma unroll
        for (int i = 0; i < Shared::BLOCKS; i++, step++) {
            const u32 stage = step % Shared::STAGES;
            wait(full + 8 * stage, step / Shared::STAGES & 1);
            begin_products();
#pragma unroll
            for (int k = 0; k < Shared::DEPTH / 8; k += 2)
                wgmma_registers<192>(sums, hidden + 2 * (i * Shared::DEPTH / 8 + k), operand(base + stage * Shared::STAGE + k * Shared::B_NEXT, Shared::B_NEXT));
            commit_products();
        }
        wait_products<0>();
        if (is_first_lane)
            for (int i = 1; i <= Shared::BLOCKS; i++) arrive(empty + 8 * ((step - i) % Shared::STAGES));
        store_unit<Shared::CHANNELS>(sums, unit, columns, tile / tiles, tile % tiles * Shared::ROWS + warpgroup * 64);
    }
}

// Bytes of shared memory: convolution_192, convolution_96, unit_192, unit_96.
extern "C" __device__ const u32 shared_bytes[] = {ConvolutionShared<192>::BYTES, ConvolutionShared<96>::BYTES, WideShared::BYTES, NarrowShared::BYTES};
