// Residual units of 96 channels of the codec for Hopper GPUs: products of warpgroups (wgmma), float16 with float32 sums.
//
// Activations are [batch, time, channels]. The input begins with its past. Every output is summed in the order of taps and
// channels, 16 at a time, like the Triton kernels do: samples do not depend on which kernel computes a unit.
//
// Operands in shared memory have no swizzle: eight channels of all rows, then the next eight channels. A window of
// inputs is copied once for all taps, and a tap shifts it by some rows.
//
// Follows wgmma.cuh and codec.cuh.

constexpr int WARPGROUP = 128;              // threads
constexpr u32 CHUNK = 16;                   // bytes: eight channels of one row
constexpr u32 ROW_GROUP = 8 * CHUNK;        // bytes of eight rows

// -- shared memory ------------------------------------------------------------------------------------

extern __shared__ __align__(128) u8 shared[];

DEVICE void copy_chunk(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// One thread copies weights; the barrier counts its arrival and the bytes.
DEVICE void copy_weights(u32 to, const void* from, u32 num_bytes, u32 barrier) {
    expect_bytes(barrier, num_bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(num_bytes), "r"(barrier) : "memory");
}

// Makes this thread's writes to shared memory visible to products.
DEVICE void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void sync_threads(int number, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

// -- products -----------------------------------------------------------------------------------------

// An operand of 16 channels: `next` is the distance in bytes from eight channels to the next eight.
DEVICE u64 operand(u32 address, u32 next) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(next >> 4) << 16 | (u64)(ROW_GROUP >> 4) << 32;
}

// -- residual units -----------------------------------------------------------------------------------

struct Unit {                               // UnitArguments of codec_unit.py
    const u16* x;                           // after the first activation; begins with its past
    const u16* weight;                      // [taps + 1, channels / 8, channels, 8]; the last is the linear layer's
    Columns hidden, columns;
    Rows rows;
    int dilation;
};

constexpr int CHANNELS = 96, TAPS = 7, MAX_REACH = 54;
constexpr int ROWS = 64, WARPGROUPS = 3;
constexpr u32 A_NEXT = (ROWS + MAX_REACH + 1) * CHUNK;  // odd number of chunks: no bank conflicts
constexpr u32 WINDOW = CHANNELS / 8 * A_NEXT;
constexpr u32 B_NEXT = CHANNELS * CHUNK;
constexpr u32 TAP = CHANNELS / 8 * B_NEXT;
constexpr u32 WINDOWS = (TAPS + 1) * TAP;
constexpr u32 PARAMETERS = WINDOWS + WARPGROUPS * WINDOW;
constexpr u32 BARRIER = PARAMETERS + 6 * CHANNELS * 4;

// Copies the inputs that a warpgroup's rows from time `first` on need.
DEVICE void load_window(u32 to, const Unit& unit, int stream, int first) {
    constexpr int CHUNKS = CHANNELS / 8;
    const int reach = (TAPS - 1) * unit.dilation, joined = reach + unit.rows.length;
    const u16* inputs = unit.x + (s64)stream * joined * CHANNELS;
    for (int i = threadIdx.x % WARPGROUP; i < (ROWS + reach) * CHUNKS; i += WARPGROUP) {
        const int row = i / CHUNKS, column = i % CHUNKS;
        copy_chunk(to + column * A_NEXT + row * CHUNK, inputs + (s64)min(first + row, joined - 1) * CHANNELS + column * 8);
    }
    commit_copies();
}

DEVICE void load_parameters(float* to, const Columns& columns) {
    for (int i = threadIdx.x; i < CHANNELS; i += blockDim.x)
        to[i] = columns.bias[i], to[CHANNELS + i] = columns.frequency[i], to[2 * CHANNELS + i] = columns.inverse_gain[i];
}

// All weights stay in shared memory. Three warpgroups compute a tile of 64 rows each, independently: some multiply while
// others activate.
extern "C" __global__ void __launch_bounds__(WARPGROUPS* WARPGROUP, 1) unit_96(const __grid_constant__ Unit unit) {
    const u32 base = shared_address(shared), barrier = base + BARRIER;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const u32 window = base + WINDOWS + warpgroup * WINDOW;
    const int tiles = (unit.rows.length + ROWS - 1) / ROWS, num_tiles = unit.rows.num_streams * tiles;
    int tile = blockIdx.x + gridDim.x * warpgroup;
    if (threadIdx.x == 0) {
        init_barrier(barrier, TAPS + 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < TAPS + 1; i++) copy_weights(base + i * TAP, (const u8*)unit.weight + i * TAP, TAP, barrier);
    }
    float* parameters = (float*)(shared + PARAMETERS);
    load_parameters(parameters, unit.hidden);
    load_parameters(parameters + 3 * CHANNELS, unit.columns);
    const Columns hidden_columns = {parameters, parameters + CHANNELS, parameters + 2 * CHANNELS};
    const Columns columns = {parameters + 3 * CHANNELS, parameters + 4 * CHANNELS, parameters + 5 * CHANNELS};
    auto load_tile = [&] {
        if (tile < num_tiles) load_window(window, unit, tile / tiles, tile % tiles * ROWS);
    };
    load_tile();
    __syncthreads();
    wait(barrier, 0);
    while (tile < num_tiles) {
        const int row = thread / 32 * 16 + thread % 32 / 4;
        const Place place(unit.rows, tile / tiles, tile % tiles * ROWS, ROWS, row, 0);
        prefetch_residual<CHANNELS>(unit.rows, place);
        wait_copies<0>();
        fence_shared();
        sync_threads(1 + warpgroup, WARPGROUP);
        float sums[CHANNELS / 2];
        clear(sums);
        begin_products();
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap++) {
            const u32 from = window + tap * unit.dilation * CHUNK;
#pragma unroll
            for (int k = 0; k < CHANNELS / 8; k += 2)
                wgmma<CHANNELS>(sums, operand(from + k * A_NEXT, A_NEXT), operand(base + tap * TAP + k * B_NEXT, B_NEXT));
        }
        commit_products();
        wait_products<0>();
        sync_threads(1 + warpgroup, WARPGROUP);
        tile += WARPGROUPS * gridDim.x;
        load_tile();
        u32 hidden[CHANNELS / 4];
        hide<CHANNELS / 8>(hidden, sums, hidden_columns);
        clear(sums);
        begin_products();
#pragma unroll
        for (int k = 0; k < CHANNELS / 8; k += 2)
            wgmma<CHANNELS>(sums, hidden + 2 * k, operand(base + TAPS * TAP + k * B_NEXT, B_NEXT));
        commit_products();
        wait_products<0>();
        store<CHANNELS>(sums, unit.rows, place, columns);
    }
}

extern "C" __device__ const u32 shared_bytes[] = {BARRIER + 8};
