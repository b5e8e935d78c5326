// One step of the talker for each row of a batch in one launch: all layers, with attention to the slots' keys.
//
// Attention is split into chunks of KEYS keys, counted from a slot's first, so a row's sums do not depend on its
// batch. A chunk is one page of the KV cache. The copying warp brings keys and values through the ring like weights; the new token's are added in shared
// memory. A block that attends to one of several chunks publishes its partial sums, and the block of the last chunk
// merges them.
//
// Defined by the compiler's command line, besides those of stages.cuh: LAYERS.

constexpr int WIDEST = padded(INTER > MIXED ? (INTER > HIDDEN ? INTER : HIDDEN) : (MIXED > HIDDEN ? MIXED : HIDDEN));
constexpr int KEYS = 8 * WARPS;              // of a chunk: a warp scores eight
constexpr int PARTIAL = HEAD_DIM + 2;        // words of a query's partial sums: values, largest score, total
constexpr int MERGED = 4;                    // partial sums that a thread reads at once

static_assert(SLOT_BYTES >= KEYS * HEAD_BYTES && SLOT_BYTES >= CHUNK_BYTES && SLOT_BYTES % 128 == 0, "");

struct Weights {
    Layer layers[LAYERS];
    const u16 *norm, *cos, *sin;
};

struct KernelArguments {
    const Weights* weights;
    const u16* x;                 // [batch, HIDDEN]
    u16* hidden;                  // [batch, HIDDEN]: output, normalised
    u16* keys;                    // [LAYERS, pages, KV_HEADS, KEYS, HEAD_DIM]
    u16* values;
    const int* pages;             // [slots, pages_stride]: of each chunk of a slot's keys
    const s64* slots;             // [batch]
    const s64* position;          // where the new key is stored
    const s64* num_keys;          // that the row attends to, the new one included
    u64* partials;                // [batch, KV_HEADS, max_chunks, GROUP, PARTIAL]: a float and a tag each
    u32* exchange;                // two of Exchange
    u32* control;                 // launches, and blocks that timed out
    const int* watch;             // layer, key head and query whose scores are kept; -1: none
    float* scores;                // [slots, score_stride]: of that head, at the slot's positions
    s64 layer_stride, page_stride, head_stride;  // of keys and values, in numbers
    u32 batch, max_chunks, shared_bytes, pages_stride, score_stride;
};

// Results that blocks exchange; one half is cleared while the other is used.
struct Exchange {
    u32 qkv[2][MAX_BATCH * QKV];
    u32 mixed[MAX_BATCH * MIXED];
    u32 middle[MAX_BATCH * HIDDEN_PITCH];  // after attention
    u32 inner[MAX_BATCH * INTER];
    u32 out[MAX_BATCH * HIDDEN_PITCH];     // of a layer
};

struct Shared {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS];
    u32 lost, epoch;
    u32 units[MAX_BATCH + 1];         // of attention, of all rows before
    u32 slot[MAX_BATCH], position[MAX_BATCH], num_keys[MAX_BATCH];
    u32 watched[3];                   // layer, key head, query
    float sums[WARPS];
    alignas(16) float scores[GROUP][KEYS];
    float parts[UNITS_AT_ONCE + 1][WARPS][MAX_BATCH * ROWS];
    alignas(16) u16 own[MAX_OWN][MAX_BATCH * ROWS];  // this block's part of the residual stream
    alignas(16) u8 queries[GROUP * HEAD_BYTES];
};

struct Block {
    const KernelArguments& request;
    Shared& shared;
    Exchange& exchange;
    u8* ring_base;
    Rows narrow_rows;  // inputs of HIDDEN numbers
    Rows wide_rows;    // and of up to WIDEST, in the same memory: one is read into registers before the other comes
    Ring ring;
    u32 thread, lane, warp;
    u32 batch, rows;   // both the number of rows
};

// A row's key head and one chunk of its keys.
struct Unit {
    u32 row, head, chunk, num_chunks;

    DEVICE_MEMBER bool is_last() const { return chunk + 1 == num_chunks; }

    // The start of the keys or values in the page of a position.
    DEVICE_MEMBER u64 page(const KernelArguments& r, const Shared& shared, u32 layer, u32 position) const {
        const int page = __ldg(r.pages + (u64)shared.slot[row] * r.pages_stride + position / KEYS);
        return layer * r.layer_stride + page * r.page_stride + head * r.head_stride;
    }

    DEVICE_MEMBER u64* partial(const KernelArguments& r, u32 chunk, u32 query) const {
        return r.partials + (((u64)(row * KV_HEADS + head) * r.max_chunks + chunk) * GROUP + query) * PARTIAL;
    }
};

DEVICE Unit find_unit(const Shared& shared, u32 index) {
    u32 row = 0;
    while (index >= shared.units[row + 1]) ++row;
    const u32 num_chunks = (shared.num_keys[row] + KEYS - 1) / KEYS, within = index - shared.units[row];
    return Unit{row, within / num_chunks, within % num_chunks, num_chunks};
}

DEVICE void init_units(Shared& shared, const KernelArguments& request) {
    shared.units[0] = 0;
    for (u32 i = 0; i < 3; ++i) shared.watched[i] = (u32)request.watch[i];
    for (u32 row = 0; row < request.batch; ++row) {
        shared.slot[row] = (u32)request.slots[row];
        shared.position[row] = (u32)request.position[row];
        shared.num_keys[row] = (u32)request.num_keys[row];
        shared.units[row + 1] = shared.units[row] + KV_HEADS * ((shared.num_keys[row] + KEYS - 1) / KEYS);
    }
}

// -- the warp that copies weights, keys and values -----------------------------------------------------

DEVICE void fetch_attention(Ring& ring, const KernelArguments& r, const Shared& shared, u32 layer, u32 lane) {
    for (u32 index = last_first(); index < shared.units[r.batch]; index += gridDim.x) {
        const Unit unit = find_unit(shared, index);
        const u32 begin = unit.chunk * KEYS, num_old = min(shared.num_keys[unit.row] - 1 - begin, (u32)KEYS);
        const u64 at = unit.page(r, shared, layer, begin);
        ring.fetch_heads(r.keys + at, num_old, lane);
        ring.fetch_heads(r.values + at, num_old, lane);
    }
}

// In the order in which they are read.
DEVICE void fetch_all(Ring ring, const KernelArguments& request, const Shared& shared, u32 lane) {
    const u64 policy = stream_policy();
    for (u32 layer = 0; layer < LAYERS; ++layer) {
        const Layer& w = request.weights->layers[layer];
        fetch_units(ring, w.qkv, QKV / ROWS, HIDDEN_DEPTH, FP8_OTHERS, lane, policy);
        fetch_attention(ring, request, shared, layer, lane);
        fetch_units(ring, w.o, HIDDEN / ROWS, MIXED_DEPTH, FP8_OTHERS, lane, policy);
        fetch_gated(ring, w.gate_up, lane, policy);
        fetch_units(ring, w.down, HIDDEN / ROWS, INTER_DEPTH, FP8_MLP, lane, policy);
    }
}

// -- attention ---------------------------------------------------------------------------------------

DEVICE void publish_sums(u64* at, float first, float second, u32 tag) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
                 ::"l"(at), "l"((u64)tag << 32 | __float_as_uint(first)), "l"((u64)tag << 32 | __float_as_uint(second))
                 : "memory");
}

DEVICE u64 peek_sum(const u64* at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

// LANES threads to a head: norm and rotation of the queries; with the last chunk also of the new key, which goes
// with its value to the chunk in shared memory and to the slot.
DEVICE void prepare_heads(Block& b, const Unit& unit, u32 layer, u8* keys, u8* values, bool is_early,
                          u32 tag) {
    const Layer& w = b.request.weights->layers[layer];
    const u32 num_lines = unit.is_last() ? GROUP + 2 : GROUP;
    const u32 i = b.thread % LANES, line = min(b.thread / LANES, num_lines - 1), position = b.shared.position[unit.row];
    const u32 column = line < GROUP ? unit.head * GROUP + line
                                    : (line == GROUP ? HEADS : HEADS + KV_HEADS) + unit.head;
    const Rotation rotation(line < GROUP ? w.q_norm : w.k_norm, *b.request.weights, position, i);
    u32 x[8], turned[8];
    read_eight(x, Source{b.exchange.qkv[layer & 1] + unit.row * QKV, nullptr, tag, 4}, column * HEAD_DIM + 8 * i,
               &b.shared.lost, is_early);
    rotation.apply(turned, x, line > GROUP);
    if (b.thread >= LANES * num_lines) return;
    if (line < GROUP) {
        store_eight(b.shared.queries + line * HEAD_BYTES + 16 * i, turned);
        return;
    }
    const u32 newest = b.shared.num_keys[unit.row] - 1 - unit.chunk * KEYS;
    store_eight((line == GROUP ? keys : values) + newest * HEAD_BYTES + 16 * i, turned);
    u16* page = (line == GROUP ? b.request.keys : b.request.values) + unit.page(b.request, b.shared, layer, position);
    store_eight(reinterpret_cast<u8*>(page + position % KEYS * HEAD_DIM + 8 * i), turned);
}

// Sets rows of values past the newest to 0, because their content is undefined.
DEVICE void clear_values(Block& b, const Unit& unit, u8* values) {
    const u32 first = b.shared.num_keys[unit.row] - unit.chunk * KEYS;
    for (u32 i = LANES * first + COMPUTING - 1 - b.thread; i < LANES * KEYS; i += COMPUTING)
        *reinterpret_cast<uint4*>(values + i / LANES * HEAD_BYTES + i % LANES * 16) = make_uint4(0, 0, 0, 0);
}

// A warp scores eight keys.
DEVICE void score_keys(Block& b, const Unit& unit, u32 layer, const u8* keys) {
    const u32 row = b.lane & 7, part = b.lane >> 3, query = b.lane / 4;
    const u32 query_at = shared_address(b.shared.queries) + min(row, (u32)GROUP - 1) * HEAD_BYTES + part * 16;
    const u32 key_at = shared_address(keys) + (8 * b.warp + row) * HEAD_BYTES + part * 16;
    float c[2][4] = {};
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 32; ++i) {
        u32 q[4], k[4];
        load_matrices(q, query_at + i * 64);
        load_matrices(k, key_at + i * 64);
        multiply(c[0], q[0], 0, q[1], 0, k[0], k[1]);
        multiply(c[1], q[2], 0, q[3], 0, k[2], k[3]);
    }
    if (query >= GROUP) return;
    const u32* watched = b.shared.watched;
    const bool is_watched = layer == watched[0] && unit.head == watched[1] && query == watched[2];
    float* kept = b.request.scores + (u64)b.shared.slot[unit.row] * b.request.score_stride + unit.chunk * KEYS;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const u32 key = 8 * b.warp + 2 * (b.lane % 4) + n;
        const bool is_seen = unit.chunk * KEYS + key < b.shared.num_keys[unit.row];
        const float score =
            is_seen ? __fmul_rn(__fadd_rn(c[0][n], c[1][n]), SOFTMAX_SCALE) : -__int_as_float(0x7f800000);
        b.shared.scores[query][key] = score;
        if (is_watched && is_seen) kept[key] = score;
    }
}

// Softmax over the chunk and the weighted sum of its values; a warp computes sixteen numbers.
DEVICE void mix_values(Block& b, const Unit& unit, const u8* values, u32 tag, u32 partial_tag) {
    const u32 row = b.lane & 7, part = b.lane >> 3, query = b.lane / 4, begin = 16 * b.warp;
    if (begin >= HEAD_DIM) return;
    const float* scores = b.shared.scores[min(query, (u32)GROUP - 1)] + 2 * (b.lane % 4);
    float p[KEYS / 8][2], top = -__int_as_float(0x7f800000);
#pragma unroll
    for (int tile = 0; tile < KEYS / 8; ++tile) {
        const float2 pair = *reinterpret_cast<const float2*>(scores + 8 * tile);
        p[tile][0] = pair.x;
        p[tile][1] = pair.y;
        top = fmaxf(top, fmaxf(pair.x, pair.y));
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    float total = 0.0f;
#pragma unroll
    for (int tile = 0; tile < KEYS / 8; ++tile) {
#pragma unroll
        for (int n = 0; n < 2; ++n) p[tile][n] = exponential(__fsub_rn(p[tile][n], top));
        total = __fadd_rn(total, __fadd_rn(p[tile][0], p[tile][1]));
    }
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
    const u32 value_at = shared_address(values) + ((part & 1) * 8 + row) * HEAD_BYTES + 2 * (begin + (part >> 1) * 8);
    float mixed[2][4] = {};
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) {
        u32 v[4];
        load_transposed(v, value_at + 16 * step * HEAD_BYTES);
        const u32 p0 = pack(narrow(p[2 * step][0]), narrow(p[2 * step][1]));
        const u32 p1 = pack(narrow(p[2 * step + 1][0]), narrow(p[2 * step + 1][1]));
        multiply(mixed[0], p0, 0, p1, 0, v[0], v[1]);
        multiply(mixed[1], p0, 0, p1, 0, v[2], v[3]);
    }
    if (query >= GROUP) return;
    const u32 at = begin + 2 * (b.lane % 4);
    u32* target = b.exchange.mixed + unit.row * MIXED + (unit.head * GROUP + query) * HEAD_DIM + at;
    u64* partial = unit.partial(b.request, unit.chunk, query);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
        if (unit.num_chunks == 1)
            publish_pair(target + 8 * tile, narrow(divide_full(mixed[tile][0], total)),
                         narrow(divide_full(mixed[tile][1], total)), tag);
        else
            publish_sums(partial + at + 8 * tile, mixed[tile][0], mixed[tile][1], partial_tag);
    if (unit.num_chunks > 1 && b.thread % 4 == 0 && b.warp == 0)
        publish_sums(partial + HEAD_DIM, top, total, partial_tag);
}

// The partial sums of one head's chunks, added up in their order; a thread merges one number.
DEVICE void merge_chunks(Block& b, const Unit& unit, u32 tag, u32 partial_tag) {
    for (u32 i = b.thread; i < GROUP * HEAD_DIM; i += COMPUTING) {
        const u32 query = i / HEAD_DIM, number = i % HEAD_DIM;
        float top = -__int_as_float(0x7f800000), total = 0.0f, sum = 0.0f;
#pragma unroll 1
        for (u32 first = 0; first < unit.num_chunks; first += MERGED) {
            u64 words[MERGED][3];
            bool is_there;
            u32 polls = 0;
            do {
                is_there = true;
#pragma unroll
                for (int n = 0; n < MERGED; ++n) {
                    const u64* partial = unit.partial(b.request, min(first + n, unit.num_chunks - 1), query);
                    words[n][0] = peek_sum(partial + number);
                    words[n][1] = peek_sum(partial + HEAD_DIM);
                    words[n][2] = peek_sum(partial + HEAD_DIM + 1);
                }
#pragma unroll
                for (int n = 0; n < 3 * MERGED; ++n) is_there &= words[n / 3][n % 3] >> 32 == partial_tag;
                if (++polls == MAX_POLLS) *(volatile u32*)&b.shared.lost = 1;
            } while (!is_there && !*(volatile u32*)&b.shared.lost);
            if (!is_there) total = __int_as_float(0x7fc00000);
#pragma unroll
            for (int n = 0; n < MERGED; ++n) {
                if (first + n >= unit.num_chunks) break;
                const float peak = __uint_as_float((u32)words[n][1]), next = fmaxf(top, peak);
                const float kept = exponential(__fsub_rn(top, next)), share = exponential(__fsub_rn(peak, next));
                sum = __fmaf_rn(sum, kept, __fmul_rn(__uint_as_float((u32)words[n][0]), share));
                total = __fmaf_rn(total, kept, __fmul_rn(__uint_as_float((u32)words[n][2]), share));
                top = next;
            }
        }
        publish(b.exchange.mixed + unit.row * MIXED + (unit.head * GROUP + query) * HEAD_DIM + number,
                narrow(divide_full(sum, total)), tag);
    }
}

DEVICE void run_attention(Block& b, u32 layer, u32 tag) {
    const u32 num_units = b.shared.units[b.batch], partial_tag = b.shared.epoch * LAYERS + tag;
    u32 here = 0;
#pragma unroll 1
    for (u32 index = last_first(); index < num_units; index += gridDim.x, ++here) {
        const Unit unit = find_unit(b.shared, index);
        const u32 key_slot = b.ring.wait(2 * here), value_slot = b.ring.wait(2 * here + 1);
        u8 *keys = b.ring_base + key_slot * SLOT_BYTES, *values = b.ring_base + value_slot * SLOT_BYTES;
        if (b.warp < (LANES * (GROUP + 2) + 31) / 32) prepare_heads(b, unit, layer, keys, values, here == 0, tag);
        if (unit.is_last()) clear_values(b, unit, values);
        sync_computing();
        score_keys(b, unit, layer, keys);
        sync_computing();
        mix_values(b, unit, values, tag, partial_tag);
        if (unit.is_last()) fence_copies();
        b.ring.release(key_slot, b.lane);
        b.ring.release(value_slot, b.lane);
    }
    b.ring.advance(2 * here);
#pragma unroll 1
    for (u32 index = last_first(); index < num_units; index += gridDim.x) {
        const Unit unit = find_unit(b.shared, index);
        if (unit.num_chunks > 1 && unit.is_last()) merge_chunks(b, unit, tag, partial_tag);
    }
}

// -- the step ----------------------------------------------------------------------------------------

// A layer has two halves of the same shape, attention and MLP: a product from normalised rows, then one that is
// added to the residual stream. One loop computes all of it, so that its code stays in the instruction cache.
DEVICE void run_layers(Block& b) {
    const Weights& weights = *b.request.weights;
    Exchange& exchange = b.exchange;
    Source source{nullptr, b.request.x, 0, 0};
#pragma unroll 1
    for (u32 half = 0;; ++half) {
        const u32 layer = half / 2, tag = layer + 1;
        const bool is_mlp = half % 2, is_end = half == 2 * LAYERS;
        if (is_end && last_first() > 0) return;
        const Layer& w = weights.layers[is_end ? 0 : layer];
        const u16* norm = is_end ? weights.norm : is_mlp ? w.post_norm : w.input_norm;
        const u32 step = half == 0 ? HIDDEN : HIDDEN_PITCH;
        const auto gather = [&] { gather_normed(b, source, b.rows, 0, step, norm, half == 0); };
        if (is_end) {
            gather();
            break;
        }
        run_linear(b, b.rows, is_mlp ? exchange.inner : exchange.qkv[layer & 1], is_mlp ? INTER : QKV, is_mlp, tag,
                   gather);
        if (!is_mlp) run_attention(b, layer, tag);
        u32* target = is_mlp ? exchange.out : exchange.middle;
        if (units_here(HIDDEN / ROWS) > 0) {
            const u32* words = is_mlp ? exchange.inner : exchange.mixed;
            run_residual(b, is_mlp, target, tag, [&] { gather_published(b, words, is_mlp ? INTER : MIXED, tag); });
        }
        source = Source{target, nullptr, tag, 128};
    }
    for (u32 i = b.thread; i < b.rows * HIDDEN / 8; i += COMPUTING)
        reinterpret_cast<uint4*>(b.request.hidden)[i] =
            *reinterpret_cast<const uint4*>(b.narrow_rows.row(i / (HIDDEN / 8)) + 16 * (i % (HIDDEN / 8)));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) talker_kernel(const KernelArguments request) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 thread = threadIdx.x, batch = request.batch;
    if (thread == 0) {
        init_shared(shared, request.control);
        init_units(shared, request);
    }
    u8* rows_base = memory + (sizeof(Shared) + 127) / 128 * 128;
    u8* ring_base = rows_base + (batch * (2 * WIDEST + 16) + 127) / 128 * 128;
    __syncthreads();
    Exchange& exchange = open_exchange<Exchange>(request.exchange, shared.epoch);
    const Ring ring = open_ring(shared, memory, ring_base, request.shared_bytes);
    if (thread >= COMPUTING) {
        claim_registers(false);
        if (thread < COMPUTING + 32) fetch_all(ring, request, shared, thread - COMPUTING);
    } else {
        claim_registers(true);
        Block block{request, shared, exchange, ring_base, {rows_base, 2 * HIDDEN_DEPTH + 16}, {rows_base, 2 * WIDEST + 16},
                    ring, thread, thread % 32, thread / 32, batch, batch};
        run_layers(block);
        finish(shared, request.control);
    }
}

// Sizes that the host reads.
extern "C" __device__ const u32 layout[] = {(sizeof(Shared) + 127) / 128 * 128, sizeof(Exchange), sizeof(Weights),
                                            THREADS};
