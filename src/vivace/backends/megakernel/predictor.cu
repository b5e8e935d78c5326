// The code predictor's whole frame in one launch: fifteen sweeps through its layers, the heads, the draws,
// the next code's embedding and the sum of embeddings.
//
// Defined by the compiler's command line, besides those of stages.cuh: LAYERS, BOOKS, VOCAB, WIDTH (of the talker,
// whose vectors come in), KEPT_LAYERS (whose weights should stay in L2).

constexpr int WIDEST = padded(INTER > MIXED ? (INTER > WIDTH ? INTER : WIDTH) : (MIXED > WIDTH ? MIXED : WIDTH));
constexpr bool PROJECTS = WIDTH != HIDDEN;                     // to the predictor's width
constexpr int WIDTH_DEPTH = padded(WIDTH);
constexpr int NEXT_PITCH = PROJECTS ? WIDTH : HIDDEN_PITCH;    // words of the vector of a code just drawn
constexpr int CODES = padded(VOCAB) / COMPUTING;               // that a thread draws from; some may be past the last
constexpr int SHARE = WIDTH_DEPTH / COMPUTING;                 // numbers of an embedding that a thread copies; likewise
constexpr int POSITIONS = 16;                                  // one MMA spans all of them
constexpr int LAYER_KEYS = 2 * POSITIONS * HEAD_BYTES;         // keys, then values

static_assert(WIDTH % 64 == 0, "rows are read in whole vectors");
static_assert(BOOKS > 1 && BOOKS <= POSITIONS, "a frame's positions");
static_assert(VOCAB % 64 == 0 && VOCAB <= 2048 && 2 * GROUP <= 8, "counts of codes have eleven bits, an MMA eight rows");

struct Weights {
    Layer layers[LAYERS];
    const u16 *norm, *cos, *sin, *projection, *projection_bias;
    const u16 *heads[BOOKS - 1], *embeddings[BOOKS - 1];
};

struct KernelArguments {
    const Weights* weights;
    const u16* x;                 // [batch, 2, WIDTH]: the talker's state and the first code's vector
    const float* noise;           // [batch, noise_pitch], of codebook 1 first
    const float* temperature;     // [batch]
    const s64* is_greedy;
    const s64* last;              // the rank of the last code that top-k keeps
    const float* top_p;
    s64* codes;                   // [batch, BOOKS]; the first is there
    signed char* is_finite;       // [batch]; of the first code, then of all
    float* code_sum;              // [batch, WIDTH]; likewise
    const s64* forced;            // [batch, BOOKS] or null: codes to go on from instead of those drawn
    u16* logits;                  // [batch, BOOKS - 1, VOCAB] or null: takes all of them
    u32* exchange;                // two of Exchange
    u32* control;                 // launches, and launches in which a block timed out
    s64 noise_pitch;
    u32 batch;
    u32 shared_bytes;
};

// Results that blocks exchange; one half is cleared while the other is used.
struct Exchange {
    u32 qkv[2][MAX_BATCH * QKV];
    u32 logits[MAX_BATCH * VOCAB];
    u32 mixed[MAX_BATCH * MIXED];
    u32 middle[MAX_BATCH * HIDDEN_PITCH];  // after attention
    u32 inner[MAX_BATCH * INTER];
    u32 out[MAX_BATCH * HIDDEN_PITCH];     // of a layer
    u32 next[MAX_BATCH * NEXT_PITCH];      // the vector of the code just drawn
    u32 projected[MAX_BATCH * HIDDEN_PITCH];
};

struct Shared {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS];
    u32 lost, epoch, pad[2];
    float sums[WARPS];
    u32 counts[2][WARPS];
    u64 best[WARPS];
    float parts[UNITS_AT_ONCE + 1][WARPS][MAX_BATCH * ROWS];
    u16 own[MAX_OWN][MAX_BATCH * ROWS];     // this block's part of the residual stream
    u8 queries[2 * GROUP * HEAD_BYTES];
};

struct Block {
    const KernelArguments& request;
    Shared& shared;
    Exchange& exchange;
    u8* keys;          // [units of attention here][LAYERS][keys, values][POSITIONS][HEAD_BYTES]
    Rows narrow_rows;  // inputs of HIDDEN numbers
    Rows wide_rows;    // and of up to WIDEST
    Ring ring;
    u32 thread, lane, warp;
    u32 batch;         // slots
    u32 rows;          // of the present sweep: one or two to a slot
};


// -- the warp that copies weights --------------------------------------------------------------------

// Weights in the order of their products.
DEVICE void fetch_all(Ring ring, const Weights& weights, u32 first_sweep, u32 lane) {
    const u64 keep = keep_policy(), stream = stream_policy();
    for (u32 sweep = first_sweep; sweep < BOOKS; ++sweep) {
        if (PROJECTS) fetch_units(ring, weights.projection, HIDDEN / ROWS, WIDTH_DEPTH, FP8_OTHERS, lane, keep);
        for (u32 layer = 0; layer < LAYERS; ++layer) {
            const Layer& w = weights.layers[layer];
            const u64 policy = layer < KEPT_LAYERS ? keep : stream;
            fetch_units(ring, w.qkv, QKV / ROWS, HIDDEN_DEPTH, FP8_OTHERS, lane, policy);
            if (sweep == 0 && layer == LAYERS - 1) break;
            fetch_units(ring, w.o, HIDDEN / ROWS, MIXED_DEPTH, FP8_OTHERS, lane, policy);
            fetch_gated(ring, w.gate_up, lane, policy);
            fetch_units(ring, w.down, HIDDEN / ROWS, INTER_DEPTH, FP8_MLP, lane, policy);
        }
        if (sweep > 0) fetch_units(ring, weights.heads[sweep - 1], VOCAB / ROWS, HIDDEN_DEPTH, FP8_OTHERS, lane, stream);
    }
}

DEVICE void gather_numbers(Block& b, const u16* numbers, u32 pitch) {
    for (u32 row = 0; row < b.rows; ++row)
#pragma unroll 1
        for (u32 i = b.thread; i < WIDTH / 8; i += COMPUTING)
            *reinterpret_cast<uint4*>(b.wide_rows.row(row) + 16 * i) =
                *reinterpret_cast<const uint4*>(numbers + row * pitch + 8 * i);
    sync_computing();
}

// -- products ----------------------------------------------------------------------------------------

template <typename Gather>
DEVICE void run_projection(Block& b, u32 tag, Gather gather) {
    const u16* bias = b.request.weights->projection_bias;
    Chunk ahead[CHUNKS_AHEAD] = {};
    load_ahead(ahead, b.ring, WIDTH_DEPTH / DEPTH, FP8_OTHERS, b.lane, b.warp);
    gather();
    const u32 rows = b.wide_rows.lane_address(b.lane, b.warp, b.rows);
    run_units(
        b, b.rows, WIDTH_DEPTH / DEPTH, units_here(HIDDEN / ROWS), 1,
        [&](u32) { multiply_first<WIDTH_DEPTH / DEPTH>(b, rows, ahead, FP8_OTHERS); },
        [&](u32 start, u32 from, u32 here) { multiply_deep<WIDTH_DEPTH / DEPTH>(b, rows, FP8_OTHERS, start, from, here); },
        [&](u32 unit, u32 i, u32 at) {
            const u32 column = column_of(unit, i), x = narrow(__fadd_rn(whole(b, at, i), wide(bias[column])));
            b.shared.own[unit][i] = x;
            publish(b.exchange.projected + i / ROWS * HIDDEN_PITCH + spread(column), x, tag);
        });
}

// -- attention ---------------------------------------------------------------------------------------

// LANES threads to a head: norm and rotation of queries and key, then all where the mix finds them. `words` are
// of the sweep's first row of this slot, whose position is `first`.
DEVICE void prepare_heads(Block& b, const Layer& w, const u32* words, u8* keys, u32 head, u32 num_new, u32 first,
                          u32 tag) {
    const u32 i = b.thread % LANES, line = min(b.thread / LANES, num_new * (GROUP + 2) - 1);
    const u32 token = line / (GROUP + 2), row = line % (GROUP + 2), position = first + token;
    const u32 column = row < GROUP ? head * GROUP + row : row == GROUP ? HEADS + head : HEADS + KV_HEADS + head;
    const Rotation rotation(row < GROUP ? w.q_norm : w.k_norm, *b.request.weights, position, i);
    u32 x[8];
    read_eight(x, Source{words, nullptr, tag, 4}, token * QKV + column * HEAD_DIM + 8 * i, &b.shared.lost, true);
    u32 turned[8];
    rotation.apply(turned, x, row > GROUP);
    if (b.thread >= LANES * num_new * (GROUP + 2)) return;
    u8* values = keys + POSITIONS * HEAD_BYTES;
    u8* target = row < GROUP ? b.shared.queries + (token * GROUP + row) * HEAD_BYTES
                             : (row == GROUP ? keys : values) + position * HEAD_BYTES;
    store_eight(target + 16 * i, turned);
}

// The query heads of one key head against the frame's positions; a warp computes sixteen numbers.
DEVICE void mix_values(Block& b, const u8* keys, u32* target, u32 num_new, u32 first, u32 tag) {
    if (16 * b.warp >= HEAD_DIM) return;
    const u32 row = b.lane & 7, part = b.lane >> 3, query = b.lane / 4, token = query / GROUP;
    const u32 query_at =
        shared_address(b.shared.queries) + min(row, num_new * GROUP - 1) * HEAD_BYTES + part * 16;
    const u32 key_at = shared_address(keys) + row * HEAD_BYTES + part * 16;
    float scores[2][4] = {};
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 32; ++i) {
        u32 q[4], k[2][4];
        load_matrices(q, query_at + i * 64);
        load_matrices(k[0], key_at + i * 64);
        load_matrices(k[1], key_at + 8 * HEAD_BYTES + i * 64);
#pragma unroll
        for (int half = 0; half < 4; half += 2)
#pragma unroll
            for (int tile = 0; tile < 2; ++tile)
                multiply(scores[tile], q[half], 0, q[half + 1], 0, k[tile][half], k[tile][half + 1]);
    }
    float p[2][2], top = -__int_as_float(0x7f800000);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const bool is_seen = 8 * tile + 2 * (b.lane % 4) + n <= first + token;
            p[tile][n] = is_seen ? __fmul_rn(scores[tile][n], SOFTMAX_SCALE) : -__int_as_float(0x7f800000);
            top = fmaxf(top, p[tile][n]);
        }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    float totals[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int n = 0; n < 2; ++n) p[tile][n] = exponential(__fsub_rn(p[tile][n], top));
        float sum = __fadd_rn(p[tile][0], p[tile][1]);
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        totals[tile] = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    }
    const float total = __fadd_rn(totals[0], totals[1]);
    const u32 p0 = pack(narrow(p[0][0]), narrow(p[0][1])), p1 = pack(narrow(p[1][0]), narrow(p[1][1]));
    const u32 begin = 16 * b.warp;
    const u32 value_at = shared_address(keys) + POSITIONS * HEAD_BYTES + ((part & 1) * 8 + row) * HEAD_BYTES +
                         2 * (begin + (part >> 1) * 8);
    u32 v[4];
    load_transposed(v, value_at);
    float mixed[2][4] = {};
    multiply(mixed[0], p0, 0, p1, 0, v[0], v[1]);
    multiply(mixed[1], p0, 0, p1, 0, v[2], v[3]);
    if (query >= num_new * GROUP) return;
    target += token * MIXED + query % GROUP * HEAD_DIM + begin + 2 * (b.lane % 4);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
        publish_pair(target + 8 * tile, narrow(divide_full(mixed[tile][0], total)),
                     narrow(divide_full(mixed[tile][1], total)), tag);
}

DEVICE void run_attention(Block& b, u32 layer, u32 sweep, u32 index, u32 tag) {
    const u32 num_new = b.rows / b.batch, first = sweep + 1 - num_new;
    u32 here = 0;
    for (u32 unit = last_first(); unit < b.batch * KV_HEADS; unit += gridDim.x, ++here) {
        const u32 slot = unit / KV_HEADS, head = unit % KV_HEADS;
        u8* keys = b.keys + (here * LAYERS + layer) * LAYER_KEYS;
        if (here > 0) sync_computing();  // the queries of the unit before were read
        if (b.warp < (LANES * num_new * (GROUP + 2) + 31) / 32)
            prepare_heads(b, b.request.weights->layers[layer], b.exchange.qkv[index & 1] + slot * num_new * QKV, keys,
                          head, num_new, first, tag);
        sync_computing();
        mix_values(b, keys, b.exchange.mixed + slot * num_new * MIXED + head * GROUP * HEAD_DIM, num_new, first, tag);
    }
}

// -- draws -------------------------------------------------------------------------------------------

// Maps floats to integers of the same order.
DEVICE u32 ordered(float value) {
    const u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The code of number i of this thread's logits, and whether there is one.
DEVICE u32 code_of(const Block& b, int i) { return i / 4 * 4 * COMPUTING + 4 * b.thread + i % 4; }
DEVICE bool is_code(const Block& b, int i) { return VOCAB == CODES * COMPUTING || code_of(b, i) < VOCAB; }

// The number of the block's keys at or above each of three thresholds.
DEVICE void count_reaching(Block& b, const u32 (&keys)[CODES], const u32 (&thresholds)[3], u32 round, u32 (&reach)[3]) {
    u32 count = 0;
#pragma unroll
    for (int i = 0; i < CODES; ++i)
#pragma unroll
        for (int n = 0; n < 3; ++n)
            if (keys[i] >= thresholds[n]) count += 1 << (10 * n);
    count = __reduce_add_sync(~0u, count);
    u32(&counts)[WARPS] = b.shared.counts[round & 1];
    if (b.lane == 0) counts[b.warp] = count;
    sync_computing();
    count = b.lane < WARPS ? counts[b.lane] : 0;
    const u32 low = __reduce_add_sync(~0u, (count & 1023) | (count >> 10 & 1023) << 16);
    reach[0] = low & 0xffff;
    reach[1] = low >> 16;
    reach[2] = __reduce_add_sync(~0u, count >> 20);
}

// A key that `rank` of the block's 16-bit keys reach; more reach it only if they are equal. It is sought near the
// largest key first, where it mostly is.
DEVICE u32 kth_largest(Block& b, const u32 (&keys)[CODES], u32 rank) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < CODES; ++i) top = max(top, keys[i]);
    top = __reduce_max_sync(~0u, top);
    if (b.lane == 0) b.shared.counts[1][b.warp] = top;
    sync_computing();
    top = __reduce_max_sync(~0u, b.lane < WARPS ? b.shared.counts[1][b.lane] : 0);
    u32 low = 0, high = top + 1;  // as many reach `low` as must, and too few reach `high`
    u32 thresholds[3] = {top < 64 ? 0 : top - 64, top < 192 ? 0 : top - 192, top < 512 ? 0 : top - 512};
#pragma unroll 1
    for (u32 round = 0; high - low > 1; ++round) {
        u32 reach[3];
        count_reaching(b, keys, thresholds, round, reach);
        u32 exact = 0;
#pragma unroll
        for (int n = 0; n < 3; ++n) {
            if (reach[n] == rank) exact = thresholds[n];
            if (reach[n] >= rank) low = max(low, thresholds[n]);
            else high = min(high, thresholds[n]);
        }
        if (exact > 0) return exact;
        const u32 quarter = max((high - low) / 4, 1u);
#pragma unroll
        for (int n = 0; n < 3; ++n) thresholds[n] = min(low + (n + 1) * quarter, high - 1);
    }
    return low;
}

// The sum of one number per thread of the block, in a fixed order.
DEVICE float sum_of_block(Block& b, float value) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) value = __fadd_rn(value, __shfl_xor_sync(~0u, value, far));
    if (b.lane == 0) b.shared.sums[b.warp] = value;
    sync_computing();
    float sum = b.shared.sums[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum = __fadd_rn(sum, b.shared.sums[warp]);
    sync_computing();  // before the next sum is written
    return sum;
}

// The lowest key that top-p keeps among the keys from `lowest` on. The keys below it have at most 1 - top_p of the
// probability together. Equal keys are all kept or all dropped, and the largest is always kept.
DEVICE u32 smallest_in_nucleus(Block& b, const u32 (&keys)[CODES], const float (&logits)[CODES], u32 lowest, float heat,
                               float top_p) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < CODES; ++i) top = max(top, keys[i]);
    top = __reduce_max_sync(~0u, top);
    if (b.lane == 0) b.shared.counts[0][b.warp] = top;
    sync_computing();
    top = __reduce_max_sync(~0u, b.lane < WARPS ? b.shared.counts[0][b.lane] : 0);
    const float peak = __fdiv_rn(wide(top & 0x8000u ? top & 0x7fffu : ~top & 0xffffu), heat);
    float mass[CODES], own = 0.0f;
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
        mass[i] = keys[i] < lowest || !is_code(b, i) ? 0.0f : exponential(__fsub_rn(__fdiv_rn(logits[i], heat), peak));
        own = __fadd_rn(own, mass[i]);
    }
    const float allowed = __fmul_rn(__fsub_rn(1.0f, top_p), sum_of_block(b, own));
    u32 low = lowest, high = top;  // keys below `low` may go; those up to `high` may not, all together
#pragma unroll 1
    while (low < high) {
        const u32 middle = (low + high) / 2;
        float below = 0.0f;
#pragma unroll
        for (int i = 0; i < CODES; ++i) below = __fadd_rn(below, keys[i] <= middle ? mass[i] : 0.0f);
        if (sum_of_block(b, below) <= allowed) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The winning code of this block's slot, and whether its score is a number.
DEVICE u32 draw_code(Block& b, u32 slot, u32 book, u32 tag, bool& is_good) {
    const KernelArguments& r = b.request;
    const float heat = r.temperature[slot];
    const bool is_greedy = r.is_greedy[slot] != 0;
    const u32 rank = (u32)r.last[slot] + 1;
    const float* noise = r.noise + slot * r.noise_pitch + (u64)(book - 1) * VOCAB;
    float extra[CODES];
#pragma unroll
    for (int i = 0; i < CODES; ++i) extra[i] = is_greedy || !is_code(b, i) ? 0.0f : noise[code_of(b, i)];
    uint4 words[CODES / 4] = {};
    const u32 num_groups = VOCAB == CODES * COMPUTING ? CODES / 4  // of four codes
                           : 4 * b.thread < VOCAB     ? (VOCAB - 4 * b.thread + 4 * COMPUTING - 1) / (4 * COMPUTING)
                                                      : 0;
    take<CODES / 4>(words, b.exchange.logits + slot * VOCAB + 4 * b.thread, 4 * COMPUTING, tag, &b.shared.lost, true,
                    num_groups);
    float logits[CODES];
    u32 keys[CODES];
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
        const uint4 w = words[i / 4];
        logits[i] = wide(i % 4 == 0 ? w.x : i % 4 == 1 ? w.y : i % 4 == 2 ? w.z : w.w);
        keys[i] = is_code(b, i) ? ordered(__fadd_rn(logits[i], 0.0f)) >> 16 : 0;  // -0 becomes 0
    }
    if (r.logits != nullptr)
#pragma unroll
        for (int i = 0; i < CODES; ++i)
            if (is_code(b, i))
                r.logits[((u64)slot * (BOOKS - 1) + book - 1) * VOCAB + code_of(b, i)] = narrow(logits[i]);
    u32 lowest = rank < VOCAB ? kth_largest(b, keys, rank) : 0;
    if (r.top_p[slot] < 1.0f) lowest = smallest_in_nucleus(b, keys, logits, lowest, heat, r.top_p[slot]);
    u32 best = 0, code = 0;
    bool is_broken = false;
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
        const float score = __fadd_rn(__fdiv_rn(logits[i], heat), extra[i]);
        is_broken |= score != score && is_code(b, i);
        const u32 key = keys[i] < lowest || !is_code(b, i) ? 0 : ordered(score);
        if (key > best) {
            best = key;
            code = code_of(b, i);
        }
    }
    const u32 top = __reduce_max_sync(~0u, best);
    code = __reduce_min_sync(~0u, best == top ? code : ~0u);
    is_broken = __any_sync(~0u, is_broken);
    if (b.lane == 0) b.shared.best[b.warp] = is_broken ? ~0ull : (u64)top << 32 | (0xffffffffu - code);
    sync_computing();
    u64 winner = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) winner = b.shared.best[warp] > winner ? b.shared.best[warp] : winner;
    const u32 order = winner >> 32;
    const float score = __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
    is_good = winner != ~0ull && score > -__int_as_float(0x7f800000) && score < __int_as_float(0x7f800000);
    return 0xffffffffu - (u32)winner;
}

// Whether an embedding has this number.
DEVICE bool is_share(u32 at) { return WIDTH == WIDTH_DEPTH || at < WIDTH; }

// Draws one codebook of this block's slot, publishes the code's vector and adds it up.
DEVICE void run_draw(Block& b, u32 slot, u32 book, float (&sum)[SHARE], bool& is_finite) {
    bool is_good;
    const u32 code = min(draw_code(b, slot, book, book, is_good), (u32)VOCAB - 1);
    is_finite &= is_good;
    if (b.thread == 0) b.request.codes[slot * BOOKS + book] = code;
    const u32 next = b.request.forced == nullptr ? code : (u32)b.request.forced[slot * BOOKS + book];
    const u16* vector = b.request.weights->embeddings[book - 1] + (u64)next * WIDTH + SHARE * b.thread;
#pragma unroll
    for (int i = 0; i < SHARE; i += 4) {
        const u32 at = SHARE * b.thread + i;
        if (!is_share(at)) break;
        const uint2 packed = *reinterpret_cast<const uint2*>(vector + i);
        const u32 v[4] = {packed.x & 0xffffu, packed.x >> 16, packed.y & 0xffffu, packed.y >> 16};
        u32* target = b.exchange.next + slot * NEXT_PITCH + (PROJECTS ? at : spread(at));
        if (book < BOOKS - 1) {
            publish_pair(target, v[0], v[1], book);
            publish_pair(target + 2, v[2], v[3], book);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[i + n] = __fadd_rn(sum[i + n], wide(v[n]));
    }
}

// -- the frame ---------------------------------------------------------------------------------------

// What the first layer reads: `step` lies between two rows.
DEVICE Source sweep_input(Block& b, u32 sweep, u32& step) {
    step = HIDDEN_PITCH;
    if (PROJECTS) return Source{b.exchange.projected, nullptr, sweep + 1, 128};
    if (sweep > 1) return Source{b.exchange.next, nullptr, sweep - 1, 128};
    const bool is_pair = b.rows > b.batch;
    step = is_pair ? WIDTH : 2 * WIDTH;
    return Source{nullptr, b.request.x + (is_pair ? 0 : sweep) * WIDTH, 0, 0};
}

DEVICE void project_input(Block& b, u32 sweep) {
    const bool is_pair = b.rows > b.batch;
    if (units_here(HIDDEN / ROWS) == 0) return;
    run_projection(b, sweep + 1, [&] {
        if (WIDTH < WIDTH_DEPTH) pad_rows(b, WIDTH);
        if (sweep > 1) gather_published(b, b.exchange.next, WIDTH, sweep - 1);
        else gather_numbers(b, b.request.x + (is_pair ? 0 : sweep) * WIDTH, is_pair ? WIDTH : 2 * WIDTH);
    });
}

// One pass through the layers and the head. A layer has two halves of the same shape, attention and MLP: a
// product from normalised rows, then one that is added to the residual stream. The head is one more first product.
// One loop computes all of it, so that its code stays in the instruction cache.
DEVICE void run_sweep(Block& b, u32 sweep) {
    const Weights& weights = *b.request.weights;
    Exchange& exchange = b.exchange;
    u32 first = 0, step;
    Source source = sweep_input(b, sweep, step);
#pragma unroll 1
    for (u32 half = 0;; ++half) {
        const u32 layer = half / 2, index = sweep * LAYERS + layer, tag = index + 1;
        const Layer& w = weights.layers[layer];
        const bool is_mlp = half % 2, is_head = half == 2 * LAYERS;
        if (is_head) {
            const u32 num_new = b.rows / b.batch;
            first = (num_new - 1) * HIDDEN_PITCH;
            step = num_new * HIDDEN_PITCH;
        }
        const u32 num_rows = is_head ? b.batch : b.rows;
        const u16* norm = is_head ? weights.norm : is_mlp ? w.post_norm : w.input_norm;
        run_linear(b, num_rows, is_head ? exchange.logits : is_mlp ? exchange.inner : exchange.qkv[index & 1],
                   is_head ? VOCAB : is_mlp ? INTER : QKV, is_mlp, is_head ? sweep : tag,
                   [&] { gather_normed(b, source, num_rows, first, step, norm, half == 0 && !PROJECTS); });
        if (is_head) return;
        if (!is_mlp) run_attention(b, layer, sweep, index, tag);
        if (sweep == 0 && half == 2 * LAYERS - 2) return;  // of the first position only keys and values are read
        u32* target = is_mlp ? exchange.out : exchange.middle;
        if (units_here(HIDDEN / ROWS) > 0) {
            const u32* words = is_mlp ? exchange.inner : exchange.mixed;
            run_residual(b, is_mlp, target, tag, [&] { gather_published(b, words, is_mlp ? INTER : MIXED, tag); });
        }
        source = Source{target, nullptr, tag, 128};
        step = HIDDEN_PITCH;
    }
}

DEVICE void run_frame(Block& b, u32 first_sweep) {
    const u32 slot = last_first();  // that this block draws for
    const bool draws = slot < b.batch;
    float sum[SHARE];
    bool is_finite = draws && b.request.is_finite[slot] != 0;
#pragma unroll
    for (int i = 0; i < SHARE; ++i)
        sum[i] = draws && is_share(SHARE * b.thread + i) ? b.request.code_sum[slot * WIDTH + SHARE * b.thread + i] : 0.0f;
#pragma unroll 1
    for (u32 sweep = first_sweep; sweep < BOOKS; ++sweep) {
        sync_computing();  // the rows of the sweep before were read
        b.rows = sweep == 1 && first_sweep == 1 ? 2 * b.batch : b.batch;
        if (PROJECTS) project_input(b, sweep);
        run_sweep(b, sweep);
        if (draws && sweep > 0) run_draw(b, slot, sweep, sum, is_finite);
    }
    if (!draws) return;
#pragma unroll
    for (int i = 0; i < SHARE; ++i)
        if (is_share(SHARE * b.thread + i)) b.request.code_sum[slot * WIDTH + SHARE * b.thread + i] = sum[i];
    if (b.thread == 0) b.request.is_finite[slot] = is_finite && !b.shared.lost;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) predictor_kernel(const KernelArguments request) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 thread = threadIdx.x, batch = request.batch;
    if (thread == 0) init_shared(shared, request.control);
    const u32 attention_units = (batch * KV_HEADS + blockIdx.x) / gridDim.x;
    u8* keys = memory + (sizeof(Shared) + 127) / 128 * 128;
    u8* narrow_base = keys + attention_units * LAYERS * LAYER_KEYS;
    const u32 first_sweep = 2 * batch <= MAX_BATCH;  // then the first two positions go together
    const u32 most_rows = first_sweep ? 2 * batch : batch;
    u8* wide_base = narrow_base + most_rows * (2 * HIDDEN_DEPTH + 16);
    u8* ring_base = wide_base + most_rows * (2 * WIDEST + 16);
    for (u32 i = thread; i < attention_units * LAYERS * LAYER_KEYS / 16; i += THREADS)
        reinterpret_cast<uint4*>(keys)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    Exchange& exchange = open_exchange<Exchange>(request.exchange, shared.epoch);
    Ring ring = open_ring(shared, memory, ring_base, request.shared_bytes);
    if (thread >= COMPUTING) {
        claim_registers(false);
        if (thread < COMPUTING + 32) fetch_all(ring, *request.weights, first_sweep, thread - COMPUTING);
    } else {
        claim_registers(true);
        Block block{request, shared, exchange, keys, {narrow_base, 2 * HIDDEN_DEPTH + 16}, {wide_base, 2 * WIDEST + 16},
                    ring, thread, thread % 32, thread / 32, batch, batch};
        run_frame(block, first_sweep);
        finish(shared, request.control);
    }
}

// Sizes that the host reads.
extern "C" __device__ const u32 layout[] = {(sizeof(Shared) + 127) / 128 * 128, sizeof(Exchange), sizeof(Weights),
                                            THREADS};
