// The code predictor's whole frame in one launch: sixteen positions through its layers, the heads, the
// draws, the next code's embedding and the sum of embeddings. The same bits as the fused kernels of the
// graph backend (product_kernels.py, attention_kernels.py, draw_kernels.py): sums run in their order.
//
// Defined by the compiler's command line: HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, BOOKS, VOCAB,
// WIDTH (of the talker, whose vectors come in), PROJECTS (whether those are projected), EPS, KEPT_LAYERS.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int MIXED = HEADS * HEAD_DIM;
constexpr int QKV = MIXED + 2 * KV_HEADS * HEAD_DIM;
constexpr int WIDEST = INTER > MIXED ? (INTER > WIDTH ? INTER : WIDTH) : (MIXED > WIDTH ? MIXED : WIDTH);
constexpr int CODES = VOCAB / COMPUTING;    // that a thread draws from
constexpr int SHARE = WIDTH / COMPUTING;    // numbers of an embedding that a thread copies
constexpr int HEAD_BYTES = 2 * HEAD_DIM + 16;
constexpr int LAYER_KEYS = 2 * BOOKS * HEAD_BYTES;  // keys, then values

static_assert(HIDDEN == 1024, "a row's norm is 128 threads with eight numbers each");
static_assert(HEAD_DIM == 16 * WARPS, "a warp mixes sixteen numbers of a head");
static_assert(BOOKS == 16, "one MMA spans all positions");
static_assert(INTER % DEPTH == 0 && MIXED % DEPTH == 0 && WIDTH % DEPTH == 0, "depths come in chunks");
static_assert(CODES % 4 == 0 && SHARE % 4 == 0 && GROUP <= 8, "");

struct Layer {
    const u16 *input_norm, *qkv, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down;
};

struct Weights {
    Layer layers[LAYERS];
    const u16 *norm, *cos, *sin, *projection, *projection_bias;
    const u16 *heads[BOOKS - 1], *embeddings[BOOKS - 1];
};

struct Request {
    const Weights* weights;
    const u16* x;                 // [batch, 2, WIDTH]: the talker's state and the first code's vector
    const float* noise;           // [batch, noise_pitch], of codebook 1 first
    const float* temperature;     // [batch]
    const s64* is_greedy;
    const s64* last;              // the rank of the last code that top-k keeps
    s64* codes;                   // [batch, BOOKS]; the first is there
    signed char* is_finite;       // [batch]; of the first code, then of all
    float* code_sum;              // [batch, WIDTH]; likewise
    u32* exchange;                // two of Exchange
    u32* control;                 // launches, and those in which a block gave up
    s64 noise_pitch;
    u32 batch;
    u32 num_slots;                // of the ring
};

// What blocks tell each other; one half of it is cleared while the other is used.
struct Exchange {
    u32 qkv[2][MAX_BATCH * QKV];
    u32 mixed[MAX_BATCH * MIXED];
    u32 middle[MAX_BATCH * HIDDEN];   // after attention
    u32 inner[MAX_BATCH * INTER];
    u32 out[MAX_BATCH * HIDDEN];      // of a layer
    u32 next[MAX_BATCH * WIDTH];      // the vector of the code just drawn
    u32 projected[MAX_BATCH * HIDDEN];
    u32 logits[MAX_BATCH * VOCAB];
};

struct Shared {
    u64 full[64], empty[64];
    u32 lost, epoch, pad[2];
    float sums[WARPS];
    u32 counts[2][WARPS];
    u64 best[WARPS];
    float parts[2][PARTS][MAX_BATCH * ROWS];
    u16 own[4][MAX_BATCH][ROWS];      // this block's part of the residual stream
    u8 queries[GROUP * HEAD_BYTES];
};

struct Block {
    const Request& request;
    Shared& shared;
    Exchange& exchange;
    u8* keys;          // [units of attention here][LAYERS][keys, values][BOOKS][HEAD_BYTES]
    Rows narrow_rows;  // inputs of HIDDEN numbers
    Rows wide_rows;    // and of up to WIDEST
    Ring ring;
    u32 thread, lane, warp, batch;
};

// -- the warp that fetches ---------------------------------------------------------------------------

DEVICE void fetch_units(Ring& ring, const u16* weight, u32 units, u32 depth, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x)
        for (u32 k = 0; k < depth; k += DEPTH)
            ring.fetch(weight + (u64)unit * ROWS * depth + k, depth, lane, policy);
}

DEVICE void fetch_gated(Ring& ring, const u16* weight, u32 lane, u64 policy) {
    for (u32 unit = blockIdx.x; unit < INTER / ROWS; unit += gridDim.x)
        for (u32 k = 0; k < HIDDEN; k += DEPTH)
            for (u32 half = 0; half < 2; ++half)
                ring.fetch(weight + ((u64)half * INTER + unit * ROWS) * HIDDEN + k, HIDDEN, lane, policy);
}

DEVICE void fetch_all(Ring ring, const Weights& weights, u32 lane) {
    const u64 keep = keep_policy(), stream = stream_policy();
    for (u32 sweep = 0; sweep < BOOKS; ++sweep) {
        if (PROJECTS) fetch_units(ring, weights.projection, HIDDEN / ROWS, WIDTH, lane, keep);
        for (u32 layer = 0; layer < LAYERS; ++layer) {
            const Layer& w = weights.layers[layer];
            const u64 policy = layer < KEPT_LAYERS ? keep : stream;
            fetch_units(ring, w.qkv, QKV / ROWS, HIDDEN, lane, policy);
            if (sweep == 0 && layer == LAYERS - 1) break;
            fetch_units(ring, w.o, HIDDEN / ROWS, MIXED, lane, policy);
            fetch_gated(ring, w.gate_up, lane, policy);
            fetch_units(ring, w.down, HIDDEN / ROWS, INTER, lane, policy);
        }
        if (sweep > 0) fetch_units(ring, weights.heads[sweep - 1], VOCAB / ROWS, HIDDEN, lane, stream);
    }
}

// -- inputs of a stage -------------------------------------------------------------------------------

// Eight numbers of a thread: published words, or bfloat16 as they lie.
struct Source {
    const u32* words;
    const u16* numbers;
    u32 tag;
};

DEVICE void read_eight(u32 (&out)[8], const Source& source, u64 at, volatile u32* lost) {
    if (source.words == nullptr) {
        const uint4 packed = *reinterpret_cast<const uint4*>(source.numbers + at);
        const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffffu;
        return;
    }
    uint4 words[2];
    take<2>(words, source.words + at, 4, source.tag, lost);
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

// Rows of HIDDEN numbers, normalised: four warps to a row. `pitch` lies between two slots' numbers.
DEVICE void gather_normed(Block& b, const Source& source, u32 pitch, const u16* weight, bool is_kept) {
    const u32 group = b.warp / 4, place = b.thread % 128;
    for (u32 slot = group; slot < b.batch; slot += 2) {
        const uint4 packed = *reinterpret_cast<const uint4*>(weight + 8 * place);
        u32 x[8];
        read_eight(x, source, (u64)slot * pitch + 8 * place, &b.shared.lost);
        if (is_kept && place % gridDim.x == blockIdx.x)
#pragma unroll
            for (int i = 0; i < 8; ++i) b.shared.own[place / gridDim.x][slot][i] = x[i];
        float sum = squares(x);
#pragma unroll
        for (int far = 16; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
        if (b.lane == 0) b.shared.sums[b.warp] = sum;
        sync_threads(2 + group, 128);
        const float* sums = b.shared.sums + 4 * group;
        sum = __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
        const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HIDDEN), EPS));
        const u32 factors[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = scaled(wide(x[i]), scale, (factors[i / 2] >> (i % 2 * 16)) & 0xffffu);
        store_eight(b.narrow_rows.row(slot) + 16 * place, x);
        if (slot + 2 < b.batch) sync_threads(2 + group, 128);
    }
    sync_computing();
}

// Rows of K numbers as they were published.
template <int K>
DEVICE void gather_published(Block& b, const u32* words, u32 tag) {
    constexpr int V = K / (4 * COMPUTING) > 0 ? K / (4 * COMPUTING) : 1;
    for (u32 slot = 0; slot < b.batch; ++slot) {
        uint4 out[V];
        take<V>(out, words + (u64)slot * K + 4 * b.thread, 4 * COMPUTING, tag, &b.shared.lost);
#pragma unroll
        for (int v = 0; v < V; ++v)
            *reinterpret_cast<uint2*>(b.wide_rows.row(slot) + 8 * (b.thread + v * COMPUTING)) =
                make_uint2(pack(out[v].x, out[v].y), pack(out[v].z, out[v].w));
    }
    sync_computing();
}

DEVICE void gather_numbers(Block& b, const u16* numbers, u32 pitch) {
    for (u32 slot = 0; slot < b.batch; ++slot)
        for (u32 i = b.thread; i < WIDTH / 8; i += COMPUTING)
            *reinterpret_cast<uint4*>(b.wide_rows.row(slot) + 16 * i) =
                *reinterpret_cast<const uint4*>(numbers + (u64)slot * pitch + 8 * i);
    sync_computing();
}

// -- products ----------------------------------------------------------------------------------------

// Units of eight columns, each of one warp, to published bfloat16 numbers.
template <int K>
DEVICE void run_linear(Block& b, const Rows& rows, u32* target, u32 columns, u32 tag) {
    const u32 count = units_here(columns / ROWS), at = rows.lane_address(b.lane, b.batch);
    for (u32 j = b.warp; j < count; j += WARPS) {
        float c[4] = {};
        multiply_unit<K>(c, b.ring, j * (K / DEPTH), at, b.lane);
        const u32 slot = b.lane / 4, column = (blockIdx.x + j * gridDim.x) * ROWS + 2 * (b.lane % 4);
        if (slot < b.batch) publish_pair(target + slot * columns + column, narrow(c[0]), narrow(c[1]), tag);
    }
    b.ring.position += count * (K / DEPTH);
}

DEVICE void run_projection(Block& b, u32 tag) {
    const u32 count = units_here(HIDDEN / ROWS), at = b.wide_rows.lane_address(b.lane, b.batch);
    const u16* bias = b.request.weights->projection_bias;
    for (u32 j = b.warp; j < count; j += WARPS) {
        float c[4] = {};
        multiply_unit<WIDTH>(c, b.ring, j * (WIDTH / DEPTH), at, b.lane);
        const u32 slot = b.lane / 4, within = 2 * (b.lane % 4);
        const u32 column = (blockIdx.x + j * gridDim.x) * ROWS + within;
        const u32 first = narrow(__fadd_rn(c[0], wide(bias[column])));
        const u32 second = narrow(__fadd_rn(c[1], wide(bias[column + 1])));
        if (slot < b.batch) {
            b.shared.own[j][slot][within] = first;
            b.shared.own[j][slot][within + 1] = second;
            publish_pair(b.exchange.projected + slot * HIDDEN + column, first, second, tag);
        }
    }
    b.ring.position += count * (WIDTH / DEPTH);
}

DEVICE u32 open_gate(float gate, float up) {
    const float g = rounded(gate);
    const float opened = rounded(divide_full(g, __fadd_rn(exponential(-g), 1.0f)));
    return narrow(__fmul_rn(opened, rounded(up)));
}

DEVICE void run_gated(Block& b, u32 tag) {
    const u32 count = units_here(INTER / ROWS), at = b.narrow_rows.lane_address(b.lane, b.batch);
    for (u32 j = b.warp; j < count; j += WARPS) {
        float gate[4] = {}, up[4] = {};
        multiply_gated<HIDDEN>(gate, up, b.ring, 2 * j * (HIDDEN / DEPTH), at, b.lane);
        const u32 slot = b.lane / 4, column = (blockIdx.x + j * gridDim.x) * ROWS + 2 * (b.lane % 4);
        if (slot < b.batch)
            publish_pair(b.exchange.inner + slot * INTER + column, open_gate(gate[0], up[0]),
                         open_gate(gate[1], up[1]), tag);
    }
    b.ring.position += 2 * count * (HIDDEN / DEPTH);
}

// Four warps to a unit; the sum is added to this block's part of the residual stream.
template <int K>
DEVICE void run_residual(Block& b, u32* target, u32 tag) {
    const u32 count = units_here(HIDDEN / ROWS), at = b.wide_rows.lane_address(b.lane, b.batch);
    const u32 group = b.warp / PARTS, part = b.warp % PARTS;
    for (u32 j = group; j < count; j += 2) {
        float c[4] = {};
        multiply_part<K>(c, b.ring, j * (K / DEPTH), at, b.lane, part);
        float(&parts)[PARTS][MAX_BATCH * ROWS] = b.shared.parts[group];
        *reinterpret_cast<float2*>(&parts[part][2 * b.lane]) = make_float2(c[0], c[1]);
        sync_threads(2 + group, 128);
        for (u32 i = b.thread % 128; i < b.batch * ROWS; i += 128) {
            const float sum = __fadd_rn(__fadd_rn(parts[0][i], parts[2][i]), __fadd_rn(parts[1][i], parts[3][i]));
            u16& own = b.shared.own[j][i / ROWS][i % ROWS];
            own = narrow(__fadd_rn(wide(own), rounded(sum)));
            publish(target + (i / ROWS) * HIDDEN + (blockIdx.x + j * gridDim.x) * ROWS + i % ROWS, own, tag);
        }
        if (j + 2 < count) sync_threads(2 + group, 128);
    }
    b.ring.position += count * (K / DEPTH);
}

// -- attention ---------------------------------------------------------------------------------------

// Sixteen threads to a head: norm and rotation of queries and key, then all where the mix finds them.
DEVICE void prepare_heads(Block& b, const Layer& w, const u32* words, u8* keys, u32 head, u32 position, u32 tag) {
    const u32 i = b.thread % 16, row = min(b.thread / 16, GROUP + 1);
    const u32 first = row < GROUP ? head * GROUP + row : row == GROUP ? HEADS + head : HEADS + KV_HEADS + head;
    const u16* norm = row < GROUP ? w.q_norm : w.k_norm;
    const uint4 factors = *reinterpret_cast<const uint4*>(norm + 8 * i);
    const uint4 cosines = *reinterpret_cast<const uint4*>(b.request.weights->cos + position * HEAD_DIM + 8 * i);
    const uint4 sines = *reinterpret_cast<const uint4*>(b.request.weights->sin + position * HEAD_DIM + 8 * i);
    u32 x[8];
    read_eight(x, Source{words, nullptr, tag}, first * HEAD_DIM + 8 * i, &b.shared.lost);
    float sum = squares(x);
#pragma unroll
    for (int far = 8; far > 0; far /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
    const float scale = rsqrt_approximate(__fadd_rn(divide_full(sum, HEAD_DIM), EPS));
    const u32 f[4] = {factors.x, factors.y, factors.z, factors.w};
    const u32 c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
    const u32 s[4] = {sines.x, sines.y, sines.z, sines.w};
    u32 turned[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const u32 shift = n % 2 * 16;
        const u32 normed = scaled(wide(x[n]), scale, (f[n / 2] >> shift) & 0xffffu);
        const u32 other = __shfl_xor_sync(~0u, normed, 8);
        const float along = rounded(__fmul_rn(wide(normed), wide((c[n / 2] >> shift) & 0xffffu)));
        const float across = rounded(__fmul_rn(wide(other), wide((s[n / 2] >> shift) & 0xffffu)));
        turned[n] = row > GROUP ? x[n] : narrow(__fadd_rn(along, across));
    }
    if (b.thread >= 16 * (GROUP + 2)) return;
    u8* values = keys + BOOKS * HEAD_BYTES;
    u8* target = row < GROUP ? b.shared.queries + row * HEAD_BYTES
                             : (row == GROUP ? keys : values) + position * HEAD_BYTES;
    store_eight(target + 16 * i, turned);
}

// The query heads of one key head against the frame's positions; a warp mixes sixteen numbers.
DEVICE void mix_values(Block& b, const u8* keys, u32* target, u32 position, u32 tag) {
    const u32 row = b.lane & 7, part = b.lane >> 3;
    const u32 query_at = shared_address(b.shared.queries) + min(row, GROUP - 1) * HEAD_BYTES + part * 16;
    const u32 key_at = shared_address(keys) + row * HEAD_BYTES + part * 16;
    float scores[2][4] = {};
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 32; ++i) {
        u32 q[4];
        load_matrices(q, query_at + i * 64);
        add_product(scores[0], q, key_at + i * 64);
        add_product(scores[1], q, key_at + 8 * HEAD_BYTES + i * 64);
    }
    float p[2][2], top = -__int_as_float(0x7f800000);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const bool is_seen = 8 * tile + 2 * (b.lane % 4) + n <= position;
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
    const u32 first = 16 * b.warp;
    const u32 value_at = shared_address(keys) + BOOKS * HEAD_BYTES + ((part & 1) * 8 + row) * HEAD_BYTES +
                         2 * (first + (part >> 1) * 8);
    u32 v[4];
    load_transposed(v, value_at);
    float mixed[2][4] = {};
    multiply(mixed[0], p0, 0, p1, 0, v[0], v[1]);
    multiply(mixed[1], p0, 0, p1, 0, v[2], v[3]);
    if (b.lane / 4 >= GROUP) return;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
        publish_pair(target + (b.lane / 4) * HEAD_DIM + first + 8 * tile + 2 * (b.lane % 4),
                     narrow(divide_full(mixed[tile][0], total)), narrow(divide_full(mixed[tile][1], total)), tag);
}

DEVICE void run_attention(Block& b, u32 layer, u32 position, u32 index, u32 tag) {
    u32 here = 0;
    for (u32 unit = blockIdx.x; unit < b.batch * KV_HEADS; unit += gridDim.x, ++here) {
        const u32 slot = unit / KV_HEADS, head = unit % KV_HEADS;
        u8* keys = b.keys + (here * LAYERS + layer) * LAYER_KEYS;
        if (here > 0) sync_computing();  // the queries of the unit before were read
        if (b.warp < (16 * (GROUP + 2) + 31) / 32)
            prepare_heads(b, b.request.weights->layers[layer], b.exchange.qkv[index & 1] + slot * QKV, keys, head,
                          position, tag);
        sync_computing();
        mix_values(b, keys, b.exchange.mixed + slot * MIXED + head * GROUP * HEAD_DIM, position, tag);
    }
}

// -- draws -------------------------------------------------------------------------------------------

// Floats in their order as integers.
DEVICE u32 ordered(float value) {
    const u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The number that `rank` of a block's bfloat16 numbers reach, by their upper 16 bits, two at a time.
DEVICE float kth_largest(Block& b, const float (&values)[CODES], u32 rank) {
    u32 keys[CODES];
#pragma unroll
    for (int i = 0; i < CODES; ++i) keys[i] = ordered(values[i]) >> 16;
    u32 found = 0;
#pragma unroll
    for (int round = 0; round < 8; ++round) {
        const u32 step = 1u << (14 - 2 * round);
        u32 count = 0;
#pragma unroll
        for (int i = 0; i < CODES; ++i)
            count += (keys[i] >= found + step) + ((keys[i] >= found + 2 * step) << 10) +
                     ((keys[i] >= found + 3 * step) << 20);
        count = __reduce_add_sync(~0u, count);
        u32(&counts)[WARPS] = b.shared.counts[round & 1];
        if (b.lane == 0) counts[b.warp] = count;
        sync_computing();
        u32 reach[3] = {};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int n = 0; n < 3; ++n) reach[n] += counts[warp] >> (10 * n) & 1023u;
        found += step * ((reach[0] >= rank) + (reach[1] >= rank) + (reach[2] >= rank));
    }
    return wide(found & 0x8000u ? found & 0x7fffu : ~found & 0xffffu);
}

// The winning code of this block's slot, and whether its score is a number.
DEVICE u32 draw_code(Block& b, u32 slot, u32 book, u32 tag, bool& is_good) {
    const Request& r = b.request;
    const float heat = r.temperature[slot];
    const bool is_greedy = r.is_greedy[slot] != 0;
    const u32 rank = (u32)r.last[slot] + 1;
    const float* noise = r.noise + slot * r.noise_pitch + (u64)(book - 1) * VOCAB + CODES * b.thread;
    float extra[CODES], scores[CODES];
#pragma unroll
    for (int i = 0; i < CODES; ++i) extra[i] = is_greedy ? 0.0f : noise[i];
    uint4 words[CODES / 4];
    take<CODES / 4>(words, b.exchange.logits + slot * VOCAB + CODES * b.thread, 4, tag, &b.shared.lost);
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
        const uint4 w = words[i / 4];
        scores[i] = wide(i % 4 == 0 ? w.x : i % 4 == 1 ? w.y : i % 4 == 2 ? w.z : w.w);
    }
    float lowest = -__int_as_float(0x7f800000);
    if (rank < VOCAB) lowest = __fdiv_rn(kth_largest(b, scores, rank), heat);
    u64 best = 0;
    bool is_broken = false;
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
        float score = __fdiv_rn(scores[i], heat);
        is_broken |= score != score;
        score = score < lowest ? -__int_as_float(0x7f800000) : __fadd_rn(score, extra[i]);
        const u64 key = (u64)ordered(score) << 32 | (0xffffffffu - (CODES * b.thread + i));
        best = key > best ? key : best;
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        const u64 other = __shfl_xor_sync(~0u, best, far);
        best = other > best ? other : best;
    }
    if (b.lane == 0) b.shared.best[b.warp] = best;
    is_broken = __any_sync(~0u, is_broken);
    if (b.lane == 0) b.shared.counts[0][b.warp] = is_broken;
    sync_computing();
    for (int warp = 0; warp < WARPS; ++warp) {
        best = b.shared.best[warp] > best ? b.shared.best[warp] : best;
        is_broken |= b.shared.counts[0][warp] != 0;
    }
    const u32 order = best >> 32;
    const float score = __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
    is_good = !is_broken && score > -__int_as_float(0x7f800000) && score < __int_as_float(0x7f800000);
    sync_computing();  // before the next draw writes there
    return 0xffffffffu - (u32)best;
}

// Draws one codebook of this block's slot, publishes the code's vector and adds it up.
DEVICE void run_draw(Block& b, u32 slot, u32 book, float (&sum)[SHARE], bool& is_finite) {
    bool is_good;
    const u32 code = min(draw_code(b, slot, book, book, is_good), (u32)VOCAB - 1);
    is_finite &= is_good;
    if (b.thread == 0) b.request.codes[slot * BOOKS + book] = code;
    const u16* vector = b.request.weights->embeddings[book - 1] + (u64)code * WIDTH + SHARE * b.thread;
#pragma unroll
    for (int i = 0; i < SHARE; i += 4) {
        const uint2 packed = *reinterpret_cast<const uint2*>(vector + i);
        const u32 v[4] = {packed.x & 0xffffu, packed.x >> 16, packed.y & 0xffffu, packed.y >> 16};
        u32* target = b.exchange.next + slot * WIDTH + SHARE * b.thread + i;
        if (book < BOOKS - 1) {
            publish_pair(target, v[0], v[1], book);
            publish_pair(target + 2, v[2], v[3], book);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[i + n] = __fadd_rn(sum[i + n], wide(v[n]));
    }
}

// -- the frame ---------------------------------------------------------------------------------------

DEVICE void run_layer(Block& b, u32 sweep, u32 layer, const Source& source, u32 pitch) {
    const Layer& w = b.request.weights->layers[layer];
    const u32 index = sweep * LAYERS + layer, tag = index + 1;
    gather_normed(b, source, pitch, w.input_norm, layer == 0 && !PROJECTS);
    run_linear<HIDDEN>(b, b.narrow_rows, b.exchange.qkv[index & 1], QKV, tag);
    run_attention(b, layer, sweep, index, tag);
    if (sweep == 0 && layer == LAYERS - 1) return;  // of the first position only keys and values are read
    const bool has_units = units_here(HIDDEN / ROWS) > 0;
    if (has_units) {
        gather_published<MIXED>(b, b.exchange.mixed, tag);
        run_residual<MIXED>(b, b.exchange.middle, tag);
    }
    gather_normed(b, Source{b.exchange.middle, nullptr, tag}, HIDDEN, w.post_norm, false);
    run_gated(b, tag);
    if (has_units) {
        gather_published<INTER>(b, b.exchange.inner, tag);
        run_residual<INTER>(b, b.exchange.out, tag);
    }
}

DEVICE Source sweep_input(Block& b, u32 sweep) {
    if (PROJECTS) return Source{b.exchange.projected, nullptr, sweep + 1};
    if (sweep < 2) return Source{nullptr, b.request.x + sweep * WIDTH, 0};
    return Source{b.exchange.next, nullptr, sweep - 1};
}

DEVICE void run_frame(Block& b) {
    const Weights& weights = *b.request.weights;
    const u32 slot = gridDim.x - 1 - blockIdx.x;  // that this block draws for
    const bool draws = slot < b.batch;
    float sum[SHARE];
    bool is_finite = draws && b.request.is_finite[slot] != 0;
#pragma unroll
    for (int i = 0; i < SHARE; ++i) sum[i] = draws ? b.request.code_sum[slot * WIDTH + SHARE * b.thread + i] : 0.0f;
    for (u32 sweep = 0; sweep < BOOKS; ++sweep) {
        sync_computing();  // the rows of the sweep before were read
        if (PROJECTS) {
            if (sweep < 2) gather_numbers(b, b.request.x + sweep * WIDTH, 2 * WIDTH);
            else gather_published<WIDTH>(b, b.exchange.next, sweep - 1);
            run_projection(b, sweep + 1);
        }
        Source source = sweep_input(b, sweep);
        for (u32 layer = 0; layer < LAYERS; ++layer) {
            run_layer(b, sweep, layer, source, source.words == nullptr ? 2 * WIDTH : HIDDEN);
            source = Source{b.exchange.out, nullptr, sweep * LAYERS + layer + 1};
        }
        if (sweep == 0) continue;
        gather_normed(b, source, HIDDEN, weights.norm, false);
        run_linear<HIDDEN>(b, b.narrow_rows, b.exchange.logits, VOCAB, sweep);
        if (draws) run_draw(b, slot, sweep, sum, is_finite);
    }
    if (!draws) return;
#pragma unroll
    for (int i = 0; i < SHARE; ++i) b.request.code_sum[slot * WIDTH + SHARE * b.thread + i] = sum[i];
    if (b.thread == 0) b.request.is_finite[slot] = is_finite && !b.shared.lost;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) predictor_kernel(const Request request) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 thread = threadIdx.x, batch = request.batch;
    if (thread == 0) {
        shared.lost = 0;
        shared.epoch = *(volatile u32*)request.control;
        for (u32 slot = 0; slot < request.num_slots; ++slot) {
            barrier_init(shared_address(shared.full + slot), FULL_ARRIVALS);
            barrier_init(shared_address(shared.empty + slot), EMPTY_ARRIVALS);
        }
    #if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    const u32 attention_units = (batch * KV_HEADS + gridDim.x - 1) / gridDim.x;
    u8* keys = memory + (sizeof(Shared) + 127) / 128 * 128;
    u8* narrow_base = keys + attention_units * LAYERS * LAYER_KEYS;
    u8* wide_base = narrow_base + batch * (2 * HIDDEN + 16);
    u8* ring_base = wide_base + batch * (2 * WIDEST + 16);
    for (u32 i = thread; i < attention_units * LAYERS * LAYER_KEYS / 16; i += THREADS)
        reinterpret_cast<uint4*>(keys)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    Exchange* halves = reinterpret_cast<Exchange*>(request.exchange);
    const u32 half = shared.epoch & 1;
    uint4* other = reinterpret_cast<uint4*>(halves + (1 - half));
    for (u32 i = blockIdx.x * THREADS + thread; i < sizeof(Exchange) / 16; i += gridDim.x * THREADS)
        other[i] = make_uint4(0, 0, 0, 0);
    Ring ring{shared_address(ring_base), shared_address(shared.full), shared_address(shared.empty),
              request.num_slots, 0};
    if (thread >= COMPUTING) {
        fetch_all(ring, *request.weights, thread - COMPUTING);
        return;
    }
    Block block{request, shared, halves[half], keys, {narrow_base, 2 * HIDDEN + 16}, {wide_base, 2 * WIDEST + 16},
                ring, thread, thread % 32, thread / 32, batch};
    run_frame(block);
    sync_computing();
    if (thread == 0 && shared.lost) atomicAdd(request.control + 1, 1);
    if (thread == 0 && blockIdx.x == 0) *(volatile u32*)request.control = shared.epoch + 1;
}

// What the host must know of the layout.
extern "C" __device__ const u32 layout[] = {(sizeof(Shared) + 127) / 128 * 128, sizeof(Exchange), sizeof(Weights)};
