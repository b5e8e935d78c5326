// Stages of a transformer layer over a block's share of columns, for any `Block` of a kernel.
//
// Defined by the compiler's command line: HIDDEN, INTER, HEADS, KV_HEADS, EPS, SOFTMAX_SCALE.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int MIXED = HEADS * HEAD_DIM;
constexpr int QKV = MIXED + 2 * KV_HEADS * HEAD_DIM;
constexpr int LANES = HEAD_DIM / 8;             // threads that prepare a head
constexpr int HIDDEN_DEPTH = padded(HIDDEN), MIXED_DEPTH = padded(MIXED), INTER_DEPTH = padded(INTER);
constexpr int HIDDEN_PITCH = pitch_of(HIDDEN);  // words of a published row of the residual stream
constexpr int ROW_THREADS = HIDDEN_DEPTH / 8;   // that normalise a row together
constexpr int ROW_WARPS = ROW_THREADS / 32;
constexpr int MAX_OWN = (HIDDEN / ROWS + 31) / 32;  // units of the residual stream in a block, of 32 blocks or more

// Weights that a warp holds in registers while it waits for the rows.
constexpr int PAIRS_AHEAD = HIDDEN_DEPTH == DEPTH ? 3 : 1;
constexpr int CHUNKS_AHEAD = 3;

static_assert(HIDDEN_DEPTH / DEPTH <= 2, "two chunks are in registers at once");
static_assert(HIDDEN % 64 == 0 && INTER % 64 == 0, "columns come in units, and rows are read in whole vectors");
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "a warp mixes sixteen numbers of a head");
static_assert(HEADS % KV_HEADS == 0 && GROUP <= 8, "an MMA has eight query heads");
static_assert(COMPUTING == 4 * MAX_BATCH * ROWS, "four units are added up at once");

struct Layer {  // what is in e4m3 is cast
    const u16 *input_norm, *qkv, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down;
};

// -- the warp that copies weights --------------------------------------------------------------------

// Numbers from k on, of the eight rows from `row` on. A row has `depth` numbers.
DEVICE void fetch_chunk(Ring& ring, const u16* weight, u64 row, u32 k, u32 depth, bool is_fp8, u32 lane, u64 policy) {
    if (is_fp8)
        ring.fetch_fp8(reinterpret_cast<const u8*>(weight) + (row * depth / ROWS + k) / DEPTH * FP8_CHUNK_BYTES, lane,
                       policy);
    else ring.fetch(weight + row * depth + k, depth, lane, policy);
}

DEVICE void fetch_units(Ring& ring, const u16* weight, u32 units, u32 depth, bool is_fp8, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x)
        for (u32 k = 0; k < depth; k += DEPTH)
            fetch_chunk(ring, weight, (u64)unit * ROWS, k, depth, is_fp8, lane, policy);
}

// A unit of gates, then the unit of the values that the gates multiply.
DEVICE void fetch_gated(Ring& ring, const u16* weight, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < INTER / ROWS; unit += gridDim.x)
        for (u32 half = 0; half < 2; ++half)
            for (u32 k = 0; k < HIDDEN_DEPTH; k += DEPTH)
                fetch_chunk(ring, weight, (u64)half * INTER + unit * ROWS, k, HIDDEN_DEPTH, FP8_MLP, lane, policy);
}

// -- inputs of a stage -------------------------------------------------------------------------------

// Eight numbers of a thread: published words, or bfloat16 as they lie.
struct Source {
    const u32* words;
    const u16* numbers;
    u32 tag;
    u32 step;  // words from the first four to the others
};

DEVICE void read_eight(u32 (&out)[8], const Source& source, u64 at, volatile u32* lost, bool is_early) {
    if (source.words == nullptr) {
        const uint4 packed = *reinterpret_cast<const uint4*>(source.numbers + at);
        const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffffu;
        return;
    }
    uint4 words[2];
    take<2>(words, source.words + at, source.step, source.tag, lost, is_early);
    const u32 each[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                         words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = each[i] & 0xffffu;
}

DEVICE float squares(const u32 (&x)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(wide(x[i]), wide(x[i]), sum);
    return sum;
}

DEVICE void store_eight(u8* target, const u32 (&x)[8]) {
    *reinterpret_cast<uint4*>(target) =
        make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

// The sum of the eight or four numbers that the warps of a row stored.
DEVICE float sum_of_warps(const float* sums) {
    float s[ROW_WARPS];
#pragma unroll
    for (int n = 0; n < ROW_WARPS; ++n) s[n] = sums[n];
#pragma unroll
    for (int half = ROW_WARPS / 2; half > 0; half /= 2)
#pragma unroll
        for (int n = 0; n < half; ++n) s[n] = __fadd_rn(s[n], s[n + half]);
    return s[0];
}

// `num_rows` rows of HIDDEN numbers, normalised and padded; a thread has eight numbers of a row. Row r begins at
// `first + r * step`. If `is_kept`, this block's columns are copied to `own`.
template <typename Block>
DEVICE void gather_normed(Block& b, const Source& source, u32 num_rows, u32 first, u32 step, const u16* weight,
                          bool is_kept) {
    const u32 group = b.warp / ROW_WARPS, place = b.thread % ROW_THREADS;
    const bool is_inside = HIDDEN == HIDDEN_DEPTH || 8 * place < HIDDEN;
    const uint4 packed = is_inside ? *reinterpret_cast<const uint4*>(weight + 8 * place) : make_uint4(0, 0, 0, 0);
    const u32 factors[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll 1
    for (u32 row = group; row < num_rows; row += COMPUTING / ROW_THREADS) {
        u32 x[8] = {};
        if (is_inside)
            read_eight(x, source, first + row * step + (source.words == nullptr ? 8 * place : spread(8 * place)),
                       &b.shared.lost, row == group);
        if (is_kept && is_inside && place % gridDim.x == blockIdx.x)
            store_eight(reinterpret_cast<u8*>(b.shared.own[place / gridDim.x] + row * ROWS), x);
        float sum = squares(x);
#pragma unroll
        for (int far = 16; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
        if (b.lane == 0) b.shared.sums[b.warp] = sum;
        sync_threads(2 + group, ROW_THREADS);
        sum = sum_of_warps(b.shared.sums + ROW_WARPS * group);
        const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HIDDEN), EPS));
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = scaled(wide(x[i]), scale, (factors[i / 2] >> (i % 2 * 16)) & 0xffffu);
        store_eight(b.narrow_rows.row(row) + 16 * place, x);
        if (row + COMPUTING / ROW_THREADS < num_rows) sync_threads(2 + group, ROW_THREADS);
    }
    sync_computing();
}

// Zeroes behind the first `depth` numbers of each row.
template <typename Block>
DEVICE void pad_rows(Block& b, u32 depth) {
    const u32 each = (padded(depth) - depth) / 8;  // vectors of eight numbers
    for (u32 i = b.thread; i < b.rows * each; i += COMPUTING)
        *reinterpret_cast<uint4*>(b.wide_rows.row(i / each) + 2 * depth + 16 * (i % each)) = make_uint4(0, 0, 0, 0);
}

// The rows of `depth` numbers as they were published.
template <typename Block>
DEVICE void gather_published(Block& b, const u32* words, u32 depth, u32 tag) {
    constexpr int AT_ONCE = 6;
    const u32 each = depth / 4, total = b.rows * each;  // groups of four numbers
#pragma unroll 1
    for (u32 begin = b.thread; begin < total; begin += AT_ONCE * COMPUTING) {
        uint4 out[AT_ONCE] = {};
        take<AT_ONCE>(out, words + 4 * begin, 4 * COMPUTING, tag, &b.shared.lost, begin == b.thread,
                      (total - begin + COMPUTING - 1) / COMPUTING);
#pragma unroll
        for (int v = 0; v < AT_ONCE; ++v) {
            const u32 i = begin + v * COMPUTING;
            if (i < total)
                *reinterpret_cast<uint2*>(b.wide_rows.row(i / each) + 8 * (i % each)) =
                    make_uint2(pack(out[v].x, out[v].y), pack(out[v].z, out[v].w));
        }
    }
    if (MIXED < MIXED_DEPTH || INTER < INTER_DEPTH) pad_rows(b, depth);
    sync_computing();
}

// -- products ----------------------------------------------------------------------------------------

// This block's units, a few at a time. The first `num_ready` are multiplied by `multiply_ready(here)`, from registers;
// the others by `multiply_rest(start, from, here)`, units `from` to `here` of those at hand. `emit(unit, i, at)` takes
// number i = row * ROWS + column of unit `at` of those at hand, which is number `unit` of the block's.
template <typename Block, typename Ready, typename Rest, typename Emit>
DEVICE void run_units(Block& b, u32 num_rows, u32 num_chunks, u32 count, u32 num_ready, Ready multiply_ready,
                      Rest multiply_rest, Emit emit) {
    const u32 width = num_rows > MAX_BATCH / 2 ? MAX_BATCH * ROWS : MAX_BATCH * ROWS / 2;
    const u32 i = b.thread % width;
    multiply_ready(min(count, (u32)UNITS_AT_ONCE));
#pragma unroll 1
    for (u32 start = 0, from = num_ready; start < count; start += UNITS_AT_ONCE, from = 0) {
        const u32 here = min(count - start, (u32)UNITS_AT_ONCE);
        if (from < here) multiply_rest(start, from, here);
        sync_computing();
#pragma unroll 1
        for (u32 at = b.thread / width; at < here && i < num_rows * ROWS; at += COMPUTING / width)
            emit(start + at, i, at);
        if (start + UNITS_AT_ONCE < count) sync_computing();
    }
    b.ring.advance(count * num_chunks);
}

// The first chunks of the block's first unit of a deep product, read before its rows are there.
DEVICE void load_ahead(Chunk (&ahead)[CHUNKS_AHEAD], const Ring& ring, u32 num_chunks, bool is_fp8, u32 lane,
                       u32 warp) {
#pragma unroll
    for (int n = 0; n < CHUNKS_AHEAD; ++n)
        if (n < num_chunks) ahead[n].load(ring, n, is_fp8, lane, warp);
}

// That unit's product; other chunks are read while the ones before them are multiplied.
template <int C, typename Block>
DEVICE void multiply_first(Block& b, u32 rows, const Chunk (&ahead)[CHUNKS_AHEAD], bool is_fp8) {
    Slices<C> x;
    x.load(rows);
    float c[2][4] = {};
    Chunk others[2] = {};
    if (C > CHUNKS_AHEAD) others[CHUNKS_AHEAD % 2].load(b.ring, CHUNKS_AHEAD, is_fp8, b.lane, b.warp);
#pragma unroll
    for (int chunk = 0; chunk < C; ++chunk) {
        if (chunk < CHUNKS_AHEAD) {
            ahead[chunk < CHUNKS_AHEAD ? chunk : 0].multiply_by(c, x.x[chunk]);
            continue;
        }
        if (chunk + 1 < C) others[(chunk + 1) % 2].load(b.ring, chunk + 1, is_fp8, b.lane, b.warp);
        others[chunk % 2].multiply_by(c, x.x[chunk]);
    }
    store_parts(b.shared.parts[0], c, b.lane, b.warp);
}

// Units `from` to `here`, likewise.
template <int C, typename Block>
DEVICE void multiply_deep(Block& b, u32 rows, bool is_fp8, u32 start, u32 from, u32 here) {
    Slices<C> x;
    x.load(rows);
#pragma unroll 1
    for (u32 j = from; j < here; ++j) {
        const u32 first = (start + j) * C;
        float c[2][4] = {};
        Chunk chunks[2] = {};
        chunks[0].load(b.ring, first, is_fp8, b.lane, b.warp);
#pragma unroll
        for (int chunk = 0; chunk < C; ++chunk) {
            if (chunk + 1 < C) chunks[(chunk + 1) % 2].load(b.ring, first + chunk + 1, is_fp8, b.lane, b.warp);
            chunks[chunk % 2].multiply_by(c, x.x[chunk]);
        }
        store_parts(b.shared.parts[j], c, b.lane, b.warp);
    }
}

// Of products from normalised rows, two units at a time; if they have several chunks, one is read while the one before
// it is multiplied.
template <int C, typename Block>
DEVICE void multiply_pairs(Block& b, const Slices<C>& x, u32 num_rows, bool is_fp8, u32 start, u32 from, u32 here) {
    PairChunk w[2] = {};
    if (C > 1) w[0].load(b.ring, (start + from) * C, (start + from + 1) * C, from + 1 < here, is_fp8, b.lane, b.warp);
#pragma unroll 1
    for (u32 j = from; j < here; j += 2) {
        const u32 first = (start + j) * C;
        float c[2][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < C; ++chunk) {
            if (C == 1) w[0].load(b.ring, first, first + 1, j + 1 < here, is_fp8, b.lane, b.warp);
            else if (chunk + 1 < C)
                w[(chunk + 1) % 2].load(b.ring, first + chunk + 1, first + C + chunk + 1, j + 1 < here, is_fp8, b.lane,
                                        b.warp);
            else if (j + 2 < here)
                w[0].load(b.ring, first + 2 * C, first + 3 * C, j + 3 < here, is_fp8, b.lane, b.warp);
            w[chunk % 2].multiply_by(c, x.x[chunk]);
        }
        store_pair(b.shared.parts + j, c, num_rows, b.lane, b.warp);
    }
}

// The sum of a number's eight parts.
template <typename Block>
DEVICE float whole(const Block& b, u32 at, u32 i) {
    float sum = b.shared.parts[at][0][i];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum = __fadd_rn(sum, b.shared.parts[at][warp][i]);
    return sum;
}

DEVICE u32 column_of(u32 unit, u32 i) { return (blockIdx.x + unit * gridDim.x) * ROWS + i % ROWS; }

DEVICE u32 open_gate(float gate, float up) {
    const float g = rounded(gate);
    const float opened = rounded(divide_full(g, __fadd_rn(exponential(-g), 1.0f)));
    return narrow(__fmul_rn(opened, rounded(up)));
}

// From normalised rows: queries, keys and values; gates and their values; or logits. The first weights are read
// into registers before `gather` waits for the rows.
template <typename Block, typename Gather>
DEVICE void run_linear(Block& b, u32 num_rows, u32* target, u32 columns, bool is_gated, u32 tag, Gather gather) {
    const u32 per_emit = is_gated ? 2 : 1, count = per_emit * units_here(columns / ROWS);
    const bool is_fp8 = is_gated ? FP8_MLP : FP8_OTHERS;
    constexpr int C = HIDDEN_DEPTH / DEPTH;
    PairChunk ahead[PAIRS_AHEAD][C] = {};  // set in any case, so that the registers are free before
#pragma unroll
    for (int n = 0; n < PAIRS_AHEAD; ++n)
        if (2 * n < count)
#pragma unroll
            for (int chunk = 0; chunk < C; ++chunk)
                ahead[n][chunk].load(b.ring, 2 * n * C + chunk, (2 * n + 1) * C + chunk, 2 * n + 1 < count, is_fp8,
                                     b.lane, b.warp);
    gather();
    Slices<C> x;
    x.load(b.narrow_rows.lane_address(b.lane, b.warp, num_rows));
    run_units(
        b, num_rows, C, count, 2 * PAIRS_AHEAD,
        [&](u32 here) {
#pragma unroll
            for (int n = 0; n < PAIRS_AHEAD; ++n)
                if (2 * n < here) {
                    float c[2][4] = {};
#pragma unroll
                    for (int chunk = 0; chunk < C; ++chunk) ahead[n][chunk].multiply_by(c, x.x[chunk]);
                    store_pair(b.shared.parts + 2 * n, c, num_rows, b.lane, b.warp);
                }
        },
        [&](u32 start, u32 from, u32 here) { multiply_pairs<C>(b, x, num_rows, is_fp8, start, from, here); },
        [&](u32 unit, u32 i, u32 at) {
            if (is_gated && at % 2) return;
            const float sum = whole(b, at, i);
            const u32 value = is_gated ? open_gate(sum, whole(b, at + 1, i)) : narrow(sum);
            publish(target + i / ROWS * columns + column_of(unit / per_emit, i), value, tag);
        });
}

// The product is added to this block's part of the residual stream.
template <typename Block, typename Gather>
DEVICE void run_residual(Block& b, bool is_mlp, u32* target, u32 tag, Gather gather) {
    const u32 num_chunks = (is_mlp ? INTER_DEPTH : MIXED_DEPTH) / DEPTH;
    Chunk ahead[CHUNKS_AHEAD] = {};
    load_ahead(ahead, b.ring, num_chunks, is_mlp ? FP8_MLP : FP8_OTHERS, b.lane, b.warp);
    gather();
    const u32 rows = b.wide_rows.lane_address(b.lane, b.warp, b.rows);
    run_units(
        b, b.rows, num_chunks, units_here(HIDDEN / ROWS), 1,
        [&](u32) {
            if (is_mlp) multiply_first<INTER_DEPTH / DEPTH>(b, rows, ahead, FP8_MLP);
            else multiply_first<MIXED_DEPTH / DEPTH>(b, rows, ahead, FP8_OTHERS);
        },
        [&](u32 start, u32 from, u32 here) {
            if (is_mlp) multiply_deep<INTER_DEPTH / DEPTH>(b, rows, FP8_MLP, start, from, here);
            else multiply_deep<MIXED_DEPTH / DEPTH>(b, rows, FP8_OTHERS, start, from, here);
        },
        [&](u32 unit, u32 i, u32 at) {
            u16& own = b.shared.own[unit][i];
            own = narrow(__fadd_rn(wide(own), rounded(whole(b, at, i))));
            publish(target + i / ROWS * HIDDEN_PITCH + spread(column_of(unit, i)), own, tag);
        });
}

// -- attention ---------------------------------------------------------------------------------------

// Norm and RoPE of a head by LANES threads, eight numbers each; its factors are loaded before its numbers are there.
struct Rotation {
    uint4 factors, cosines, sines;

    template <typename Weights>
    DEVICE_MEMBER Rotation(const u16* norm, const Weights& weights, u32 position, u32 i)
        : factors(*reinterpret_cast<const uint4*>(norm + 8 * i)),
          cosines(*reinterpret_cast<const uint4*>(weights.cos + position * HEAD_DIM + 8 * i)),
          sines(*reinterpret_cast<const uint4*>(weights.sin + position * HEAD_DIM + 8 * i)) {}

    // Values have neither norm nor rotation.
    DEVICE_MEMBER void apply(u32 (&out)[8], const u32 (&x)[8], bool is_value) const {
        float sum = squares(x);
#pragma unroll
        for (int far = LANES / 2; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
        const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HEAD_DIM), EPS));
        const u32 f[4] = {factors.x, factors.y, factors.z, factors.w};
        const u32 c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
        const u32 s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const u32 shift = n % 2 * 16;
            const u32 normed = scaled(wide(x[n]), scale, (f[n / 2] >> shift) & 0xffffu);
            const u32 other = __shfl_xor_sync(~0u, normed, LANES / 2);
            const float along = rounded(__fmul_rn(wide(normed), wide((c[n / 2] >> shift) & 0xffffu)));
            const float across = rounded(__fmul_rn(wide(other), wide((s[n / 2] >> shift) & 0xffffu)));
            out[n] = is_value ? x[n] : narrow(__fadd_rn(along, across));
        }
    }
};

// -- start of a block --------------------------------------------------------------------------------

template <typename Shared>
DEVICE void init_shared(Shared& shared, const u32* control) {
    shared.lost = 0;
    shared.epoch = *(const volatile u32*)control;
    for (u32 slot = 0; slot < MAX_SLOTS; ++slot) {
        barrier_init(shared_address(shared.full + slot), FULL_ARRIVALS);
        barrier_init(shared_address(shared.empty + slot), EMPTY_ARRIVALS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// The half of the exchange that this launch uses; the other half is cleared for the next launch.
template <typename Exchange>
DEVICE Exchange& open_exchange(u32* exchange, u32 epoch) {
    Exchange* halves = reinterpret_cast<Exchange*>(exchange);
    uint4* other = reinterpret_cast<uint4*>(halves + (1 - (epoch & 1)));
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < sizeof(Exchange) / 16; i += gridDim.x * THREADS)
        other[i] = make_uint4(0, 0, 0, 0);
    return halves[epoch & 1];
}

template <typename Shared>
DEVICE Ring open_ring(Shared& shared, const u8* memory, const u8* base, u32 shared_bytes) {
    const u32 num_slots = min((shared_bytes - (u32)(base - memory)) / SLOT_BYTES, (u32)MAX_SLOTS);
    return Ring{shared_address(base), shared_address(shared.full), shared_address(shared.empty), num_slots, 0, 0};
}

// Counts the launch, and the block if it timed out.
template <typename Shared>
DEVICE void finish(const Shared& shared, u32* control) {
    sync_computing();
    if (threadIdx.x == 0 && shared.lost) atomicAdd(control + 1, 1);
    if (threadIdx.x == 0 && blockIdx.x == 0) *(volatile u32*)control = shared.epoch + 1;
}

// The last blocks have the fewest products, so they also compute the attention and draw codes.
DEVICE u32 last_first() { return gridDim.x - 1 - blockIdx.x; }
