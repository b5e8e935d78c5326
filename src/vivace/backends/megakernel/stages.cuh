// Stages of a transformer layer over a block's share of columns, for any `Block` of a kernel.
//
// Defined by the compiler's command line: HIDDEN, INTER, HEADS, KV_HEADS, EPS, SOFTMAX_SCALE.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int MIXED = HEADS * HEAD_DIM;
constexpr int QKV = MIXED + 2 * KV_HEADS * HEAD_DIM;
constexpr int ROW_THREADS = HIDDEN / 8;         // that normalise a row together
constexpr int ROW_WARPS = ROW_THREADS / 32;
constexpr int ROW_GROUPS = COMPUTING / ROW_THREADS;
constexpr int ROWS_AT_ONCE = 2;                 // that a thread waits for together
constexpr int MAX_OWN = HIDDEN / ROWS / 32;     // units of the residual stream in a block, of 32 blocks or more

static_assert(HIDDEN == 1024 || HIDDEN == 2048, "a row's norm is 128 or 256 threads with eight numbers each");
static_assert(MIXED % DEPTH == 0 && INTER % DEPTH == 0, "depths come in chunks");
static_assert(HEAD_DIM == 16 * WARPS && GROUP <= 8, "a warp mixes sixteen numbers of a head");
static_assert(COMPUTING == 4 * MAX_BATCH * ROWS, "four units are added up at once");

struct Layer {
    const u16 *input_norm, *qkv, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down;
};

// -- the warp that copies weights --------------------------------------------------------------------

DEVICE void fetch_units(Ring& ring, const u16* weight, u32 units, u32 depth, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x)
        for (u32 k = 0; k < depth; k += DEPTH)
            ring.fetch(weight + (u64)unit * ROWS * depth + k, depth, lane, policy);
}

// A unit of gates, then the unit of the values that they open.
DEVICE void fetch_gated(Ring& ring, const u16* weight, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < INTER / ROWS; unit += gridDim.x)
        for (u32 half = 0; half < 2; ++half)
            for (u32 k = 0; k < HIDDEN; k += DEPTH)
                ring.fetch(weight + ((u64)half * INTER + unit * ROWS) * HIDDEN + k, HIDDEN, lane, policy);
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

// The sum of the eight or four numbers that the warps of a row left.
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

// A thread's eight numbers of `count` rows, `row_step` apart, in the lower halves of words.
DEVICE void read_rows(u32 (&out)[ROWS_AT_ONCE][8], const Source& source, u64 at, u32 row_step, u32 count,
                      volatile u32* lost, bool is_early) {
    if (source.words == nullptr) {
#pragma unroll
        for (int n = 0; n < ROWS_AT_ONCE; ++n)
            if (n < count) read_eight(out[n], source, at + n * row_step, lost, false);
        return;
    }
    if (is_early) pause_cycles(FIRST_POLL);
    const u32* begin = source.words + at;
    for (u32 polls = 0;; ++polls) {
        bool is_there = true;
#pragma unroll
        for (int v = 0; v < 2 * ROWS_AT_ONCE; ++v)
            if (v / 2 < count) {
                const uint4 words = peek(begin + v / 2 * row_step + v % 2 * source.step);
                is_there &= is_tagged(words, source.tag);
                u32* x = out[v / 2] + v % 2 * 4;
                x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
            }
        if (is_there) return;
        if (*lost) break;
        if (polls == PATIENCE) *lost = 1;
    }
#pragma unroll
    for (int i = 0; i < 8 * ROWS_AT_ONCE; ++i) out[i / 8][i % 8] = NOT_A_NUMBER;
}

// `num_rows` rows of HIDDEN numbers, normalised; a thread has eight numbers of a row. Row r begins at
// `first + r * step`. If `is_kept`, this block's columns are copied to `own`.
template <typename Block>
DEVICE void gather_normed(Block& b, const Source& source, u32 num_rows, u32 first, u32 step, const u16* weight,
                          bool is_kept) {
    const u32 group = b.warp / ROW_WARPS, place = b.thread % ROW_THREADS;
    const uint4 packed = *reinterpret_cast<const uint4*>(weight + 8 * place);
    const u32 factors[4] = {packed.x, packed.y, packed.z, packed.w};
    const u32 within = first + (source.words == nullptr ? 8 * place : spread(8 * place));
#pragma unroll 1
    for (u32 begin = group; begin < num_rows; begin += ROW_GROUPS * ROWS_AT_ONCE) {
        const u32 here = min((num_rows - begin + ROW_GROUPS - 1) / ROW_GROUPS, (u32)ROWS_AT_ONCE);
        u32 x[ROWS_AT_ONCE][8] = {};  // set in any case, so that the registers are free before
        read_rows(x, source, within + begin * step, ROW_GROUPS * step, here, &b.shared.lost, begin == group);
#pragma unroll
        for (int n = 0; n < ROWS_AT_ONCE; ++n)
            if (n < here) {
                const u32 row = begin + n * ROW_GROUPS;
                if (is_kept && place % gridDim.x == blockIdx.x)
                    store_eight(reinterpret_cast<u8*>(b.shared.own[place / gridDim.x] + row * ROWS), x[n]);
                float sum = squares(x[n]);
#pragma unroll
                for (int far = 16; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
                if (b.lane == 0) b.shared.sums[n][b.warp] = sum;
            }
        sync_threads(2 + group, ROW_THREADS);
#pragma unroll
        for (int n = 0; n < ROWS_AT_ONCE; ++n)
            if (n < here) {
                const float sum = sum_of_warps(b.shared.sums[n] + ROW_WARPS * group);
                const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HIDDEN), EPS));
                u32 y[8];
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    y[i] = scaled(wide(x[n][i]), scale, (factors[i / 2] >> (i % 2 * 16)) & 0xffffu);
                store_eight(b.narrow_rows.row(begin + n * ROW_GROUPS) + 16 * place, y);
            }
        if (begin + ROW_GROUPS * ROWS_AT_ONCE < num_rows) sync_threads(2 + group, ROW_THREADS);
    }
    sync_computing();
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
    sync_computing();
}

// -- products ----------------------------------------------------------------------------------------

// This block's units, a few at a time: `emit(unit, i, at)` takes number i = row * ROWS + column of unit `at` of
// those at hand, which is number `unit` of the block's.
template <typename Block, typename Multiply, typename Emit>
DEVICE void run_units(Block& b, u32 num_rows, u32 num_chunks, u32 count, Multiply multiply_some, Emit emit) {
    const u32 width = num_rows > MAX_BATCH / 2 ? MAX_BATCH * ROWS : MAX_BATCH * ROWS / 2;
    const u32 i = b.thread % width;
#pragma unroll 1
    for (u32 start = 0; start < count; start += UNITS_AT_ONCE) {
        const u32 here = min(count - start, (u32)UNITS_AT_ONCE);
        multiply_some(start, here);
        sync_computing();
#pragma unroll 1
        for (u32 at = b.thread / width; at < here && i < num_rows * ROWS; at += COMPUTING / width)
            emit(start + at, i, at);
        if (start + UNITS_AT_ONCE < count) sync_computing();
    }
    b.ring.advance(count * num_chunks);
}

// Of deep products, one unit at a time.
template <int C, typename Block>
DEVICE void multiply_deep(Block& b, u32 rows, u32 start, u32 here) {
    Slices<C> x;
    x.load(rows);
#pragma unroll 1
    for (u32 j = 0; j < here; ++j) multiply_one<C>(b.shared.parts[j], b.ring, (start + j) * C, x, b.lane, b.warp);
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

// From normalised rows: queries, keys and values; gates and what they open; or logits.
template <typename Block>
DEVICE void run_linear(Block& b, u32 num_rows, u32* target, u32 columns, bool is_gated, u32 tag) {
    const u32 per_emit = is_gated ? 2 : 1, count = per_emit * units_here(columns / ROWS);
    constexpr int C = HIDDEN / DEPTH;
    Slices<C> x;
    x.load(b.narrow_rows.lane_address(b.lane, b.warp, num_rows));
    run_units(
        b, num_rows, C, count,
        [&](u32 start, u32 here) {
#pragma unroll 1
            for (u32 j = 0; j < here; j += 2)
                multiply_two<C>(b.shared.parts + j, b.ring, (start + j) * C, j + 1 < here, x, num_rows, b.lane, b.warp);
        },
        [&](u32 unit, u32 i, u32 at) {
            if (is_gated && at % 2) return;
            const float sum = whole(b, at, i);
            const u32 value = is_gated ? open_gate(sum, whole(b, at + 1, i)) : narrow(sum);
            publish(target + i / ROWS * columns + column_of(unit / per_emit, i), value, tag);
        });
}

// The product is added to this block's part of the residual stream.
template <typename Block>
DEVICE void run_residual(Block& b, bool is_mlp, u32* target, u32 tag) {
    const u32 rows = b.wide_rows.lane_address(b.lane, b.warp, b.rows);
    run_units(
        b, b.rows, (is_mlp ? INTER : MIXED) / DEPTH, units_here(HIDDEN / ROWS),
        [&](u32 start, u32 here) {
            if (is_mlp) multiply_deep<INTER / DEPTH>(b, rows, start, here);
            else multiply_deep<MIXED / DEPTH>(b, rows, start, here);
        },
        [&](u32 unit, u32 i, u32 at) {
            u16& own = b.shared.own[unit][i];
            own = narrow(__fadd_rn(wide(own), rounded(whole(b, at, i))));
            publish(target + i / ROWS * HIDDEN + spread(column_of(unit, i)), own, tag);
        });
}

// -- attention ---------------------------------------------------------------------------------------

// Norm and RoPE of a head by sixteen threads, eight numbers each; its factors are loaded before its numbers are there.
struct Rotation {
    uint4 factors, cosines, sines;

    template <typename Weights>
    DEVICE_MEMBER Rotation(const u16* norm, const Weights& weights, u32 position, u32 i)
        : factors(*reinterpret_cast<const uint4*>(norm + 8 * i)),
          cosines(*reinterpret_cast<const uint4*>(weights.cos + position * HEAD_DIM + 8 * i)),
          sines(*reinterpret_cast<const uint4*>(weights.sin + position * HEAD_DIM + 8 * i)) {}

    // A value is passed on as it is.
    DEVICE_MEMBER void apply(u32 (&out)[8], const u32 (&x)[8], bool is_value) const {
        float sum = squares(x);
#pragma unroll
        for (int far = 8; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
        const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HEAD_DIM), EPS));
        const u32 f[4] = {factors.x, factors.y, factors.z, factors.w};
        const u32 c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
        const u32 s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const u32 shift = n % 2 * 16;
            const u32 normed = scaled(wide(x[n]), scale, (f[n / 2] >> shift) & 0xffffu);
            const u32 other = __shfl_xor_sync(~0u, normed, 8);
            const float along = rounded(__fmul_rn(wide(normed), wide((c[n / 2] >> shift) & 0xffffu)));
            const float across = rounded(__fmul_rn(wide(other), wide((s[n / 2] >> shift) & 0xffffu)));
            out[n] = is_value ? x[n] : narrow(__fadd_rn(along, across));
        }
    }
};

// -- a block's beginning -----------------------------------------------------------------------------

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

// The last blocks have the least to multiply: they attend and draw.
DEVICE u32 last_first() { return gridDim.x - 1 - blockIdx.x; }
