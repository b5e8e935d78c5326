// Convolutions and linear layers of the codec for Hopper GPUs: tile copies (TMA) and products of warpgroups (wgmma),
// float16 with float32 sums.
//
// Activations are [batch, time, channels]. The input of a convolution begins with its past, so a tap is a shift in time
// and a tile of inputs is one copy. Every output is summed in the order of taps and channels, 16 at a time, like the
// Triton kernels do: samples do not depend on which kernel computes a layer.
//
// A block computes tiles of 128 rows one after another. One thread copies inputs and weights into a ring buffer in
// shared memory, also those of the next tile. Two warpgroups multiply 64 rows each.
//
// Follows wgmma.cuh and operands.cuh.

constexpr int TILE_ROWS = 128, MULTIPLIERS = 256;  // threads that multiply

struct Product {                            // ProductArguments of product.py
    TensorMap x;                            // [streams, past and time, channels]: tiles of `span` times of some streams
    TensorMap weight;                       // [taps * columns, channels]
    Columns columns;
    Rows rows;
    int num_taps, dilation, num_blocks, span;  // blocks of DEPTH channels
};

extern __shared__ u8 shared[];

// Tile of a tensor with three dimensions, channels first.
DEVICE void copy_inputs(u32 to, const TensorMap& map, int channel, int time, int stream, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(channel), "r"(time), "r"(stream), "r"(barrier) : "memory");
}

template <int COLUMNS, int STAGES>
struct Sizes {
    static constexpr u32 X_BYTES = TILE_ROWS * ROW, STAGE = X_BYTES + COLUMNS * ROW;
    static constexpr u32 BARRIERS = STAGES * STAGE;
};

// The tiles of a launch: neighbouring tiles share rows.
template <int COLUMNS>
struct Tiles {
    int across, per_stream, span, count;

    DEVICE Tiles(const Rows& rows, int span)
        : across(rows.num_columns / COLUMNS), per_stream((rows.length + span - 1) / span), span(span) {
        const int streams = TILE_ROWS / span;
        count = across * per_stream * ((rows.num_streams + streams - 1) / streams);
    }
    DEVICE int column(int tile) const { return tile % across * COLUMNS; }
    DEVICE int time(int tile) const { return tile / across % per_stream * span; }
    DEVICE int stream(int tile) const { return tile / across / per_stream * (TILE_ROWS / span); }
};

// A place in the ring buffer.
template <int STAGES>
struct Stage {
    int number = 0;
    u32 parity = 0;

    DEVICE void advance() {
        if (++number == STAGES) number = 0, parity ^= 1;
    }
};

template <int COLUMNS, int STAGES>
DEVICE void copy_tiles(const Product& request, const Tiles<COLUMNS>& tiles, u32 base, u32 full, u32 empty) {
    using Size = Sizes<COLUMNS, STAGES>;
    Stage<STAGES> stage;
    for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const int column = tiles.column(tile), time = tiles.time(tile), stream = tiles.stream(tile);
        for (int tap = 0; tap < request.num_taps; tap++)
            for (int i = 0; i < request.num_blocks; i++, stage.advance()) {
                const u32 at = base + stage.number * Size::STAGE, barrier = full + 8 * stage.number;
                wait(empty + 8 * stage.number, stage.parity ^ 1);
                expect_bytes(barrier, Size::STAGE);
                copy_inputs(at, request.x, i * DEPTH, time + tap * request.dilation, stream, barrier);
                copy_tile(at + Size::X_BYTES, request.weight, i * DEPTH, tap * request.rows.num_columns + column, barrier);
            }
    }
}

// `IS_ALONE`: one block per multiprocessor, whose registers move from the copying warps to the others.
template <int COLUMNS, int STAGES, bool IS_ALONE>
DEVICE void multiply(const Product& request) {
    using Size = Sizes<COLUMNS, STAGES>;
    const u32 base = (shared_address(shared) + 1023) / 1024 * 1024;
    const u32 full = base + Size::BARRIERS, empty = full + 8 * STAGES;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const Tiles<COLUMNS> tiles(request.rows, request.span);
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.x) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.weight) : "memory");
        for (int i = 0; i < STAGES; i++) init_barrier(full + 8 * i, 1), init_barrier(empty + 8 * i, MULTIPLIERS / 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= MULTIPLIERS / 32) {
        if (IS_ALONE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == MULTIPLIERS) copy_tiles<COLUMNS, STAGES>(request, tiles, base, full, empty);
        return;
    }
    if (IS_ALONE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int num_steps = request.num_taps * request.num_blocks;
    Stage<STAGES> stage;
    for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const int column = tiles.column(tile), row = warp * 16 + lane / 4;
        const Place place(request.rows, tiles.stream(tile), tiles.time(tile), request.span, row, column);
        if (request.rows.residual) prefetch_residual<COLUMNS>(request.rows, place);
        float sums[COLUMNS / 2];
        clear(sums);
        int last = 0;
#pragma unroll 1
        for (int step = 0; step < num_steps; step++, stage.advance()) {
            const u32 at = base + stage.number * Size::STAGE;
            wait(full + 8 * stage.number, stage.parity);
            begin_products();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                wgmma<COLUMNS>(sums, operand(at + warp / 4 * 64 * ROW + k * 32), operand(at + Size::X_BYTES + k * 32));
            commit_products();
            wait_products<1>();
            if (step && lane == 0) arrive(empty + 8 * last);
            last = stage.number;
        }
        wait_products<0>();
        if (lane == 0) arrive(empty + 8 * last);
        store_tile<COLUMNS>(sums, request.rows, place, request.columns.from(column));
    }
}

#define KERNEL(NAME, THREADS, BLOCKS, COLUMNS, STAGES)                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                        \
        NAME(const __grid_constant__ Product request) {                                  \
        multiply<COLUMNS, STAGES, BLOCKS == 1>(request);                                 \
    }

KERNEL(product_256, MULTIPLIERS + 128, 1, 256, 4)
KERNEL(product_192, MULTIPLIERS + 128, 1, 192, 5)
KERNEL(paired_128, MULTIPLIERS + 32, 2, 128, 3)
KERNEL(paired_96, MULTIPLIERS + 32, 2, 96, 3)
