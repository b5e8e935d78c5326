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
// Follows wgmma.cuh and codec.cuh.

constexpr int DEPTH = 64;                   // channels of one step: a row of 128 bytes
constexpr u32 ROW = 2 * DEPTH;              // bytes
constexpr int TILE_ROWS = 128, MULTIPLIERS = 256;  // threads that multiply

struct Product {                            // ProductArguments of codec_product.py
    TensorMap x;                            // [streams, past and time, channels]: tiles of `span` times of some streams
    TensorMap weight;                       // [taps * columns, channels], columns in the order of `_column_order`
    Columns columns;
    Rows rows;                              // residual and `out`: [streams, time, columns]
    int num_streams, length, num_columns, num_taps, dilation, num_blocks, span;  // blocks of DEPTH channels
    int active_stride;                      // numbers from one stream to the next
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

    DEVICE Tiles(const Product& request)
        : across(request.num_columns / COLUMNS), per_stream((request.length + request.span - 1) / request.span), span(request.span) {
        const int streams = TILE_ROWS / span;
        count = across * per_stream * ((request.num_streams + streams - 1) / streams);
    }
    DEVICE int column(int tile) const { return tile % across * COLUMNS; }
    DEVICE int time(int tile) const { return tile / across % per_stream * span; }
    DEVICE int stream(int tile) const { return tile / across / per_stream * (TILE_ROWS / span); }
};

// A thread's rows `row` and `row + 8` of a tile, and eight neighbouring columns of every 32.
struct Place {
    int element[2], active[2];              // first column; of `active`
    bool is_row[2];

    DEVICE Place(const Product& request, int stream, int time, int row, int column) {
#pragma unroll
        for (int later = 0; later < 2; later++) {
            const int m = row + 8 * later, s = stream + m / request.span, t = time + m % request.span;
            is_row[later] = s < request.num_streams && t < request.length;
            const int n = column + 8 * (threadIdx.x % 4);
            element[later] = (s * request.length + t) * request.num_columns + n;
            active[later] = s * request.active_stride + t * request.num_columns + n;
        }
    }
};

template <int COLUMNS>
DEVICE void prefetch_residual(const Product& request, const Place& place) {
    const int line = threadIdx.x % 4;       // of 128 bytes; `element` is 16 * line bytes into the row
#pragma unroll
    for (int later = 0; later < 2; later++)
        if (line < (COLUMNS + 63) / 64 && place.is_row[later])
            asm volatile("prefetch.global.L2 [%0];" ::"l"(request.rows.residual + place.element[later] - 8 * line + 64 * line));
}

// Adds bias and residual to the sums, and stores them before and after the activation.
template <int COLUMNS>
DEVICE void store(const float (&sums)[COLUMNS / 2], const Product& request, const Place& place, int column) {
#pragma unroll
    for (int q = 0; q < COLUMNS / 32; q++) {
        const int n = column + 32 * q + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int later = 0; later < 2; later++) {
            if (!place.is_row[later]) continue;
            uint4 residual = make_uint4(0, 0, 0, 0);
            if (request.rows.residual) residual = __ldg((const uint4*)(request.rows.residual + place.element[later] + 32 * q));
            const u32 words[4] = {residual.x, residual.y, residual.z, residual.w};
            float y[8], parameters[8], gain[8];
            load8(parameters, request.columns.bias + n);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 pair = unpack(words[i / 2]);
                y[i] = sums[16 * q + 4 * (i / 2) + 2 * later + i % 2] + parameters[i] + (i % 2 ? pair.y : pair.x);
            }
            if (request.rows.out) *(uint4*)(request.rows.out + place.element[later] + 32 * q) = pack8(y);
            load8(parameters, request.columns.frequency + n);
            load8(gain, request.columns.inverse_gain + n);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = snake(y[i], parameters[i], gain[i]);
            *(uint4*)(request.rows.active + place.active[later] + 32 * q) = pack8(y);
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
    const Tiles<COLUMNS> tiles(request);
    const int num_steps = request.num_taps * request.num_blocks;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.x) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.weight) : "memory");
        for (int i = 0; i < STAGES; i++) init_barrier(full + 8 * i, 1), init_barrier(empty + 8 * i, MULTIPLIERS / 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int stage = 0;
    u32 parity = 0;
    auto advance = [&] {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    if (warp >= MULTIPLIERS / 32) {
        if (IS_ALONE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != MULTIPLIERS) return;
        for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
            const int column = tiles.column(tile), time = tiles.time(tile), stream = tiles.stream(tile);
            for (int tap = 0; tap < request.num_taps; tap++)
                for (int i = 0; i < request.num_blocks; i++, advance()) {
                    const u32 at = base + stage * Size::STAGE, barrier = full + 8 * stage;
                    wait(empty + 8 * stage, parity ^ 1);
                    expect_bytes(barrier, Size::STAGE);
                    copy_inputs(at, request.x, i * DEPTH, time + tap * request.dilation, stream, barrier);
                    copy_tile(at + Size::X_BYTES, request.weight, i * DEPTH, tap * request.num_columns + column, barrier);
                }
        }
        return;
    }
    if (IS_ALONE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int row = warp * 16 + lane / 4;   // of 64 for each warpgroup
    for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const int column = tiles.column(tile);
        const Place place(request, tiles.stream(tile), tiles.time(tile), row, column);
        if (request.rows.residual) prefetch_residual<COLUMNS>(request, place);
        float sums[COLUMNS / 2];
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 0.0f;
        int last = 0;
#pragma unroll 1
        for (int step = 0; step < num_steps; step++, advance()) {
            const u32 at = base + stage * Size::STAGE;
            wait(full + 8 * stage, parity);
            begin_products();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                wgmma<COLUMNS>(sums, operand(at + warp / 4 * 64 * ROW + k * 32), operand(at + Size::X_BYTES + k * 32));
            commit_products();
            wait_products<1>();
            if (step && lane == 0) arrive(empty + 8 * last);
            last = stage;
        }
        wait_products<0>();
        if (lane == 0) arrive(empty + 8 * last);
        store<COLUMNS>(sums, request, place, column);
    }
}

#define PRODUCT(COLUMNS, STAGES)                                                                                  \
    extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 128, 1)                                            \
        product_##COLUMNS(const __grid_constant__ Product request) { multiply<COLUMNS, STAGES, true>(request); }
#define PAIRED_PRODUCT(COLUMNS, STAGES)                                                                           \
    extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, 2)                                             \
        paired_##COLUMNS(const __grid_constant__ Product request) { multiply<COLUMNS, STAGES, false>(request); }

PRODUCT(256, 4)
PRODUCT(192, 5)
PAIRED_PRODUCT(128, 3)
PAIRED_PRODUCT(96, 3)
