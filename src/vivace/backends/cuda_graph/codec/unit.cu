// Residual units of the codec for Hopper GPUs: products of warpgroups (wgmma), float16 with float32 sums.
//
// Activations are [batch, time, channels]. The input begins with its past. Every output is summed in the order of taps and
// channels, 16 at a time, like the Triton kernels do: samples do not depend on which kernel computes a unit.
//
// Operands in shared memory have no swizzle: eight channels of all rows, then the next eight channels. A window of
// inputs is copied once for all taps, and a tap shifts it by some rows.
//
// Follows wgmma.cuh and operands.cuh.

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

struct Unit {                               // UnitArguments of unit.py
    const u16* x;                           // after the first activation; begins with its past
    const u16* weight;                      // [taps + 1, channels / DEPTH, DEPTH / 8, channels, 8]; the last is the linear layer's
    Columns hidden, columns;
    Rows rows;
    int dilation;
};

constexpr int TAPS = 7, MAX_REACH = 54;

// Copies the inputs that `ROWS` rows from time `first` on need.
template <int CHANNELS, int ROWS>
DEVICE void load_window(u32 to, u32 next, const Unit& unit, int stream, int first, int thread, int num_threads) {
    constexpr int CHUNKS = CHANNELS / 8;
    const int reach = (TAPS - 1) * unit.dilation, joined = reach + unit.rows.length;
    const u16* inputs = unit.x + (s64)stream * joined * CHANNELS;
    for (int i = thread; i < (ROWS + reach) * CHUNKS; i += num_threads) {
        const int row = i / CHUNKS, column = i % CHUNKS;
        copy_chunk(to + column * next + row * CHUNK, inputs + (s64)min(first + row, joined - 1) * CHANNELS + column * 8);
    }
    commit_copies();
}

// Bias, frequency and gain of the hidden numbers, then those of the outputs.
template <int CHANNELS>
DEVICE void load_parameters(float* to, const Unit& unit) {
    for (int i = threadIdx.x; i < CHANNELS; i += blockDim.x) {
        to[i] = unit.hidden.bias[i], to[CHANNELS + i] = unit.hidden.frequency[i];
        to[2 * CHANNELS + i] = unit.hidden.inverse_gain[i], to[3 * CHANNELS + i] = unit.columns.bias[i];
        to[4 * CHANNELS + i] = unit.columns.frequency[i], to[5 * CHANNELS + i] = unit.columns.inverse_gain[i];
    }
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
    const int tiles = (unit.rows.length + Shared::ROWS - 1) / Shared::ROWS, num_tiles = unit.rows.num_streams * tiles;
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
        const Place place(unit.rows, tile / tiles, tile % tiles * Shared::ROWS, Shared::ROWS, thread / 32 * 16 + thread % 32 / 4, 0);
        uint4 residual[Shared::CHANNELS / 32][2];
        load_residual<0>(residual, unit.rows, place);   // early: it comes from device memory
        wait_copies<0>();
        fence_shared();
        sync_threads(1 + warpgroup, WARPGROUP);
        float sums[Shared::CHANNELS / 2];
        clear(sums);
        begin_products();
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap++) {
            const u32 from = window + tap * unit.dilation * CHUNK;
#pragma unroll
            for (int k = 0; k < Shared::CHANNELS / 8; k += 2)
                wgmma<Shared::CHANNELS>(sums, operand(from + k * Shared::A_NEXT, Shared::A_NEXT),
                                        operand(base + tap * Shared::TAP + k * Shared::B_NEXT, Shared::B_NEXT));
        }
        commit_products();
        wait_products<0>();
        sync_threads(1 + warpgroup, WARPGROUP);
        tile += Shared::WARPGROUPS * gridDim.x;
        load_tile();
        u32 hidden[Shared::CHANNELS / 4];
        hide<Shared::CHANNELS / 8>(hidden, sums, hidden_columns);
        clear(sums);
        begin_products();
#pragma unroll
        for (int k = 0; k < Shared::CHANNELS / 8; k += 2)
            wgmma<96>(sums, hidden + 2 * k, operand(base + TAPS * Shared::TAP + k * Shared::B_NEXT, Shared::B_NEXT));
        commit_products();
        wait_products<0>();
        store<0>(sums, residual, unit.rows, place, columns);
    }
}

// 192 channels: two warpgroups compute 64 rows each with the same weights. A third one copies these and the windows, one
// window for each warpgroup, so that one warpgroup can multiply while the other activates.
struct WideShared {
    static constexpr int CHANNELS = 192, ROWS = 128, WARPGROUPS = 2, DEPTH = 64, STAGES = 5;
    static constexpr int GROUP_ROWS = ROWS / WARPGROUPS;
    static constexpr int BLOCKS = CHANNELS / DEPTH, STEPS = TAPS * BLOCKS;
    static constexpr u32 A_NEXT = (GROUP_ROWS + MAX_REACH + 1) * CHUNK;
    static constexpr u32 B_NEXT = CHANNELS * CHUNK;
    static constexpr u32 STAGE = DEPTH / 8 * B_NEXT;
    static constexpr u32 WINDOWS = STAGES * STAGE, WINDOW = CHANNELS / 8 * A_NEXT;
    static constexpr u32 PARAMETERS = WINDOWS + WARPGROUPS * WINDOW;
    static constexpr u32 BARRIERS = PARAMETERS + 6 * CHANNELS * 4;
    static constexpr u32 BYTES = BARRIERS + (2 * STAGES + 2 * WARPGROUPS) * 8;
};

extern "C" __global__ void __launch_bounds__((WideShared::WARPGROUPS + 1) * WARPGROUP, 1)
    unit_192(const __grid_constant__ Unit unit) {
    using Shared = WideShared;
    const u32 base = shared_address(shared), full = base + Shared::BARRIERS, empty = full + Shared::STAGES * 8;
    const u32 windows_full = empty + Shared::STAGES * 8, windows_empty = windows_full + Shared::WARPGROUPS * 8;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const int tiles = (unit.rows.length + Shared::ROWS - 1) / Shared::ROWS, num_tiles = unit.rows.num_streams * tiles;
    constexpr int LOADERS = 96;             // threads that copy windows
    constexpr int READERS = 4 * Shared::WARPGROUPS;  // warps
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shared::STAGES; i++) init_barrier(full + 8 * i, 1), init_barrier(empty + 8 * i, READERS);
        for (int i = 0; i < Shared::WARPGROUPS; i++)
            init_barrier(windows_full + 8 * i, LOADERS), init_barrier(windows_empty + 8 * i, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    float* parameters = (float*)(shared + Shared::PARAMETERS);
    load_parameters<Shared::CHANNELS>(parameters, unit);
    const Columns hidden_columns = {parameters, parameters + 192, parameters + 384};
    const Columns columns = {parameters + 576, parameters + 768, parameters + 960};
    __syncthreads();
    if (warpgroup == Shared::WARPGROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
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
        for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, parity ^= 1)
            for (int i = 0; i < Shared::WARPGROUPS; i++) {
                wait(windows_empty + 8 * i, parity);
                load_window<Shared::CHANNELS, Shared::GROUP_ROWS>(base + Shared::WINDOWS + i * Shared::WINDOW, Shared::A_NEXT, unit, tile / tiles,
                                                            tile % tiles * Shared::ROWS + i * Shared::GROUP_ROWS, thread, LOADERS);
                wait_copies<0>();
                fence_shared();
                arrive(windows_full + 8 * i);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const bool is_first_lane = thread % 32 == 0;
    const u32 window = base + Shared::WINDOWS + warpgroup * Shared::WINDOW;
    int step = 0;
    u32 parity = 0;
    for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, parity ^= 1) {
        const int first_row = tile % tiles * Shared::ROWS + warpgroup * Shared::GROUP_ROWS;
        const Place place(unit.rows, tile / tiles, first_row, Shared::GROUP_ROWS, thread / 32 * 16 + thread % 32 / 4, 0);
        prefetch_residual<Shared::CHANNELS>(unit.rows, place);
        float sums[Shared::CHANNELS / 2];
        clear(sums);
        wait(windows_full + 8 * warpgroup, parity);
#pragma unroll 1
        for (int i = 0; i < Shared::STEPS; i++, step++) {
            const u32 stage = step % Shared::STAGES;
            const u32 from = window + i % Shared::BLOCKS * (Shared::DEPTH / 8) * Shared::A_NEXT + i / Shared::BLOCKS * unit.dilation * CHUNK;
            wait(full + 8 * stage, step / Shared::STAGES & 1);
            begin_products();
#pragma unroll
            for (int k = 0; k < Shared::DEPTH / 8; k += 2)
                wgmma<Shared::CHANNELS>(sums, operand(from + k * Shared::A_NEXT, Shared::A_NEXT),
                                        operand(base + stage * Shared::STAGE + k * Shared::B_NEXT, Shared::B_NEXT));
            commit_products();
            wait_products<1>();
            if (i && is_first_lane) arrive(empty + 8 * ((step - 1) % Shared::STAGES));
        }
        wait_products<0>();
        if (is_first_lane) arrive(empty + 8 * ((step - 1) % Shared::STAGES)), arrive(windows_empty + 8 * warpgroup);
        float next[Shared::CHANNELS / 2];
        clear(next);
        u32 hidden[Shared::CHANNELS / 4];
#pragma unroll
        for (int i = 0; i < Shared::BLOCKS; i++, step++) {
            const u32 stage = step % Shared::STAGES;
            wait(full + 8 * stage, step / Shared::STAGES & 1);
#pragma unroll
            for (int k = 0; k < Shared::DEPTH / 8; k += 2) {
                const int first = i * Shared::DEPTH / 8 + k;  // of two groups of eight channels
                hide<2>(hidden + 2 * first, sums + 4 * first, hidden_columns.from(8 * first));
                begin_products();
                wgmma<192>(next, hidden + 2 * first, operand(base + stage * Shared::STAGE + k * Shared::B_NEXT, Shared::B_NEXT));
                commit_products();
            }
        }
        wait_products<0>();
        if (is_first_lane)
            for (int i = 1; i <= Shared::BLOCKS; i++) arrive(empty + 8 * ((step - i) % Shared::STAGES));
        uint4 residual[3][2];               // half of the columns: registers are scarce
        load_residual<0>(residual, unit.rows, place);
        store<0>(next, residual, unit.rows, place, columns);
        load_residual<3>(residual, unit.rows, place);
        store<3>(next, residual, unit.rows, place, columns);
    }
}

// Bytes of shared memory: unit_192, unit_96.
extern "C" __device__ const u32 shared_bytes[] = {WideShared::BYTES, NarrowShared::BYTES};
