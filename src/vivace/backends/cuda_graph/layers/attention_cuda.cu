// Attention of new tokens of talker and predictor for Hopper GPUs, with norm and RoPE of the new heads and the KV
// cache update. It rounds where the kernels of attention_kernels.py do.
//
// A warp scores 16 keys of one KV head of one slot at a time, so a slot's results do not depend on its batch. A lane
// has HEAD_DIM / 32 neighbouring numbers of every vector. Stored keys and values do not depend on the previous kernel,
// so they are loaded before it ends.
//
// Defined by the compiler's command line: HEAD_DIM, GROUP (query heads of a KV head) and NUM_KV (KV heads).

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

constexpr int WARPS = 4;                    // of a block
constexpr int WORDS = HEAD_DIM / 64;        // pairs of numbers of a lane
constexpr int POSITIONS = 16;               // tokens of a frame
constexpr int WIDTH = (GROUP + 2) * NUM_KV * HEAD_DIM;

struct FrameRequest {                       // FrameArguments of attention_cuda.py
    const u16* qkv;                         // [slots * new tokens, WIDTH]
    u16 *keys, *values;                     // [slots, NUM_KV, POSITIONS, HEAD_DIM]
    const u16 *q_weight, *k_weight, *cos, *sin;
    u16* out;                               // [slots * new tokens, GROUP * NUM_KV * HEAD_DIM]
    int num_slots, first;
    float eps, scale;
};

// -- numbers -----------------------------------------------------------------------------------------

struct Vector { u32 pairs[WORDS]; };        // a lane's part
struct Wide { float x[2 * WORDS]; };

DEVICE Vector load(const u16* from) {
    const int lane = threadIdx.x % 32;
    Vector v;
    if (WORDS == 2) {
        const uint2 two = *(const uint2*)(from + 4 * lane);
        v.pairs[0] = two.x, v.pairs[WORDS - 1] = two.y;
    } else
        v.pairs[0] = *(const u32*)(from + 2 * lane);
    return v;
}
DEVICE void store(u16* to, const Vector& v) {
    const int lane = threadIdx.x % 32;
    if (WORDS == 2) *(uint2*)(to + 4 * lane) = make_uint2(v.pairs[0], v.pairs[WORDS - 1]);
    else *(u32*)(to + 2 * lane) = v.pairs[0];
}
DEVICE Wide widen(const Vector& v) {
    Wide w;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        w.x[2 * i] = __uint_as_float(v.pairs[i] << 16), w.x[2 * i + 1] = __uint_as_float(v.pairs[i] & 0xffff0000u);
    return w;
}
DEVICE Vector narrow(const Wide& w) {
    Vector v;
#pragma unroll
    for (int i = 0; i < WORDS; i++) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v.pairs[i]) : "f"(w.x[2 * i + 1]), "f"(w.x[2 * i]));
    return v;
}
DEVICE Wide product(const Wide& a, const Wide& b) {  // rounded
    Wide w;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) w.x[i] = __fmul_rn(a.x[i], b.x[i]);
    return widen(narrow(w));
}
DEVICE Wide scaled(const Wide& a, float scale) {  // rounded
    Wide w;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) w.x[i] = __fmul_rn(a.x[i], scale);
    return widen(narrow(w));
}

// RMSNorm and RoPE; the sign of the rotation is in the table of sines.
DEVICE Vector rotated(const Vector& head, const Wide& weight, const Wide& cos, const Wide& sin, float eps) {
    const Wide x = widen(head);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) total = fmaf(x.x[i], x.x[i], total);
#pragma unroll
    for (int reach = 16; reach; reach /= 2) total += __shfl_xor_sync(~0u, total, reach);
    const Wide y = product(scaled(x, rsqrtf(total / HEAD_DIM + eps)), weight);
    Wide other, sum;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) other.x[i] = __shfl_xor_sync(~0u, y.x[i], 16);
    const Wide a = product(y, cos), b = product(other, sin);
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) sum.x[i] = __fadd_rn(a.x[i], b.x[i]);
    return narrow(sum);
}

// Lane i gets the sum of all lanes' i-th value.
template <int HALF>
DEVICE void halve(float (&values)[32]) {
    const bool is_upper = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float given = is_upper ? values[i] : values[i + HALF];
        values[i] = (is_upper ? values[i + HALF] : values[i]) + __shfl_xor_sync(~0u, given, HALF);
    }
}
DEVICE float sum_by_lane(float (&values)[32]) {
    halve<16>(values), halve<8>(values), halve<4>(values), halve<2>(values), halve<1>(values);
    return values[0];
}


#define INFINITE __int_as_float(0x7f800000)

DEVICE float rounded(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return __uint_as_float((u32)bits << 16);
}
DEVICE float dot(const Wide& a, const Wide& b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) sum = fmaf(a.x[i], b.x[i], sum);
    return sum;
}
// Of 16 lanes.
DEVICE float most(float x) {
#pragma unroll
    for (int reach = 8; reach; reach /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, reach));
    return x;
}
DEVICE float sum16(float x) {
#pragma unroll
    for (int reach = 8; reach; reach /= 2) x += __shfl_xor_sync(~0u, x, reach);
    return x;
}

// -- predictor ---------------------------------------------------------------------------------------

template <int NUM_NEW>
DEVICE void attend(const FrameRequest& request) {
    const int lane = threadIdx.x % 32, warp = blockIdx.x * WARPS + threadIdx.x / 32;
    const int slot = warp / NUM_KV, head = warp % NUM_KV, first = request.first;
    if (slot >= request.num_slots) return;
    const s64 stored = (s64)warp * POSITIONS * HEAD_DIM;
    Vector keys[POSITIONS], values[POSITIONS];
#pragma unroll
    for (int t = 0; t < POSITIONS; t++) {   // earlier kernels stored them
#pragma unroll
        for (int i = 0; i < WORDS; i++) keys[t].pairs[i] = values[t].pairs[i] = 0;
        if (t < first) keys[t] = load(request.keys + stored + t * HEAD_DIM), values[t] = load(request.values + stored + t * HEAD_DIM);
    }
    const Wide q_weight = widen(load(request.q_weight)), k_weight = widen(load(request.k_weight));
    Vector cos[NUM_NEW], sin[NUM_NEW];
#pragma unroll
    for (int i = 0; i < NUM_NEW; i++)
        cos[i] = load(request.cos + (first + i) * HEAD_DIM), sin[i] = load(request.sin + (first + i) * HEAD_DIM);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    Vector queries[NUM_NEW][GROUP];
#pragma unroll
    for (int i = 0; i < NUM_NEW; i++) {
        const u16* row = request.qkv + (s64)(slot * NUM_NEW + i) * WIDTH;
#pragma unroll
        for (int g = 0; g < GROUP; g++) queries[i][g] = load(row + (head * GROUP + g) * HEAD_DIM);
        Vector key = load(row + (GROUP * NUM_KV + head) * HEAD_DIM);
        const Vector value = load(row + ((GROUP + 1) * NUM_KV + head) * HEAD_DIM);
        const Wide c = widen(cos[i]), s = widen(sin[i]);
        key = rotated(key, k_weight, c, s, request.eps);
#pragma unroll
        for (int g = 0; g < GROUP; g++) queries[i][g] = rotated(queries[i][g], q_weight, c, s, request.eps);
        store(request.keys + stored + (first + i) * HEAD_DIM, key);
        store(request.values + stored + (first + i) * HEAD_DIM, value);
#pragma unroll
        for (int t = 0; t < POSITIONS; t++)
            if (t == first + i) keys[t] = key, values[t] = value;
    }
#pragma unroll
    for (int i = 0; i < NUM_NEW; i++) {
        u16* out = request.out + (s64)(slot * NUM_NEW + i) * GROUP * NUM_KV * HEAD_DIM;
#pragma unroll
        for (int pair = 0; pair < GROUP; pair += 2) {  // 16 lanes have the scores of each of two queries
            float sums[32];
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const Wide q = widen(queries[i][pair + g < GROUP ? pair + g : pair]);
#pragma unroll
                for (int t = 0; t < POSITIONS; t++) sums[POSITIONS * g + t] = dot(q, widen(keys[t]));
            }
            float score = __fmul_rn(sum_by_lane(sums), request.scale);
            score = lane % POSITIONS <= first + i ? score : -INFINITE;
            const float share = __expf(score - most(score)), total = sum16(share), weight = rounded(share);
#pragma unroll
            for (int g = 0; g < 2 && pair + g < GROUP; g++) {
                Wide mixed;
#pragma unroll
                for (int d = 0; d < 2 * WORDS; d++) mixed.x[d] = 0.0f;
#pragma unroll
                for (int t = 0; t < POSITIONS; t++) {
                    const float p = __shfl_sync(~0u, weight, 16 * g + t);
                    const Wide v = widen(values[t]);
#pragma unroll
                    for (int d = 0; d < 2 * WORDS; d++) mixed.x[d] = fmaf(p, v.x[d], mixed.x[d]);
                }
                const float whole = __shfl_sync(~0u, total, 16 * g);
#pragma unroll
                for (int d = 0; d < 2 * WORDS; d++) mixed.x[d] = __fdividef(mixed.x[d], whole);
                store(out + (head * GROUP + pair + g) * HEAD_DIM, narrow(mixed));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attend_one(const __grid_constant__ FrameRequest request) { attend<1>(request); }
extern "C" __global__ void __launch_bounds__(32 * WARPS) attend_two(const __grid_constant__ FrameRequest request) { attend<2>(request); }

// -- talker ------------------------------------------------------------------------------------------

constexpr int CHUNK = 64;                   // keys of a page
constexpr int TILE = 16;                    // keys of a warp's step
constexpr int SPAN = 4 * CHUNK;             // keys of a block
constexpr int PAIRS = (GROUP + 1) / 2;      // pairs of query heads

struct SlotRequest {                        // SlotArguments of attention_cuda.py
    const u16* qkv;                         // [rows, WIDTH]
    u16 *keys, *values;                     // [pages, NUM_KV, CHUNK, HEAD_DIM]
    const int* pages;                       // [slots, pages_stride]
    const u16 *q_weight, *k_weight, *cos, *sin;
    const s64 *slots, *positions, *num_keys;  // [rows]
    void* out;                              // one span: bfloat16 [rows, heads, HEAD_DIM]; else float32 [rows, heads, spans, HEAD_DIM]
    float *part_max, *part_sum;             // [rows, heads, spans]
    const int* watch;                       // layer, KV head, query head
    float* scores;                          // [slots, score_stride], of the watched head
    s64 score_stride;
    int pages_stride, num_spans, layer;
    float eps, scale;
};

// Attention of one warp to its tiles of the keys, in the lanes: 16 lanes have a query head's peak and sum.
struct Share {
    float peak[PAIRS], total[PAIRS];
    Wide mixed[GROUP];
};

DEVICE void read_tile(Share& share, const Vector (&queries)[GROUP], const Vector (&keys)[TILE], const Vector (&values)[TILE],
                      int num_keys, float scale, float* kept, int kept_head) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        float sums[32];
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const Wide q = widen(queries[2 * pair + g < GROUP ? 2 * pair + g : 2 * pair]);
#pragma unroll
            for (int t = 0; t < TILE; t++) sums[TILE * g + t] = dot(q, widen(keys[t]));
        }
        float score = __fmul_rn(sum_by_lane(sums), scale);
        if (kept && 2 * pair + lane / TILE == kept_head && lane % TILE < num_keys) kept[lane % TILE] = score;
        score = lane % TILE < num_keys ? score : -INFINITE;
        const float peak = fmaxf(share.peak[pair], most(score));
        const float before = __expf(share.peak[pair] - peak), now = __expf(score - peak);
        share.total[pair] = share.total[pair] * before + sum16(now);
        share.peak[pair] = peak;
        const float weight = rounded(now);
#pragma unroll
        for (int g = 0; g < 2 && 2 * pair + g < GROUP; g++) {
            Wide& mixed = share.mixed[2 * pair + g];
            const float kept_share = __shfl_sync(~0u, before, TILE * g);
#pragma unroll
            for (int d = 0; d < 2 * WORDS; d++) mixed.x[d] *= kept_share;
#pragma unroll
            for (int t = 0; t < TILE; t++) {
                const float p = __shfl_sync(~0u, weight, TILE * g + t);
                const Wide v = widen(values[t]);
#pragma unroll
                for (int d = 0; d < 2 * WORDS; d++) mixed.x[d] = fmaf(p, v.x[d], mixed.x[d]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) attend_slots(const __grid_constant__ SlotRequest request) {
    __shared__ float peaks[WARPS][GROUP], totals[WARPS][GROUP], mixed[WARPS][GROUP][HEAD_DIM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = blockIdx.x, head = blockIdx.y, span = blockIdx.z;
    const int count = request.num_keys[row], position = request.positions[row];
    const s64 slot = request.slots[row];
    const int* pages = request.pages + slot * request.pages_stride;
    const int end = min(count, (span + 1) * SPAN);
    int first = span * SPAN + warp * TILE;
    Vector keys[TILE], values[TILE];
    auto load_tile = [&] {
        const s64 at = ((s64)pages[first / CHUNK] * NUM_KV + head) * CHUNK + first % CHUNK;
#pragma unroll
        for (int t = 0; t < TILE; t++) {
            if (first + t < end) {
                keys[t] = load(request.keys + (at + t) * HEAD_DIM), values[t] = load(request.values + (at + t) * HEAD_DIM);
            } else
#pragma unroll
                for (int i = 0; i < WORDS; i++) keys[t].pairs[i] = values[t].pairs[i] = 0;
        }
    };
    if (first < end) load_tile();           // earlier kernels stored all keys but the new one
    const Wide q_weight = widen(load(request.q_weight)), k_weight = widen(load(request.k_weight));
    const Wide cos = widen(load(request.cos + (s64)position * HEAD_DIM)), sin = widen(load(request.sin + (s64)position * HEAD_DIM));
    const bool is_watched = request.watch[0] == request.layer && request.watch[1] == head;
    const int kept_head = request.watch[2];
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (span * SPAN >= count) return;
    const bool has_new = (span + 1) * SPAN >= count;
    const u16* given = request.qkv + (s64)row * WIDTH;
    Vector queries[GROUP], key = load(given + (GROUP * NUM_KV + head) * HEAD_DIM);
    const Vector value = load(given + ((GROUP + 1) * NUM_KV + head) * HEAD_DIM);
#pragma unroll
    for (int g = 0; g < GROUP; g++) queries[g] = load(given + (head * GROUP + g) * HEAD_DIM);
    key = rotated(key, k_weight, cos, sin, request.eps);
#pragma unroll
    for (int g = 0; g < GROUP; g++) queries[g] = rotated(queries[g], q_weight, cos, sin, request.eps);
    if (has_new && warp == 0) {
        const s64 at = (((s64)pages[position / CHUNK] * NUM_KV + head) * CHUNK + position % CHUNK) * HEAD_DIM;
        store(request.keys + at, key);
        store(request.values + at, value);
    }
    Share share;
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) share.peak[pair] = -INFINITE, share.total[pair] = 0.0f;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int d = 0; d < 2 * WORDS; d++) share.mixed[g].x[d] = 0.0f;
    for (bool is_loaded = true; first < end; first += WARPS * TILE, is_loaded = false) {
        if (!is_loaded) load_tile();
#pragma unroll
        for (int t = 0; t < TILE; t++)
            if (first + t == position) keys[t] = key, values[t] = value;
        float* kept = is_watched ? request.scores + slot * request.score_stride + first : nullptr;
        read_tile(share, queries, keys, values, end - first, request.scale, kept, kept_head);
    }
    // The warps' results, in their order.
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (lane == g % 2 * TILE) peaks[warp][g] = share.peak[g / 2], totals[warp][g] = share.total[g / 2];
#pragma unroll
        for (int d = 0; d < 2 * WORDS; d++) mixed[warp][g][2 * WORDS * lane + d] = share.mixed[g].x[d];
    }
    __syncthreads();
    for (int g = warp; g < GROUP; g += WARPS) {
        float peak = peaks[0][g], total = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; w++) peak = fmaxf(peak, peaks[w][g]);
        Wide sum;
#pragma unroll
        for (int d = 0; d < 2 * WORDS; d++) sum.x[d] = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float part = __expf(peaks[w][g] - peak);  // 0 for a warp without keys
            total = fmaf(part, totals[w][g], total);
#pragma unroll
            for (int d = 0; d < 2 * WORDS; d++) sum.x[d] = fmaf(part, mixed[w][g][2 * WORDS * lane + d], sum.x[d]);
        }
        const s64 query = ((s64)row * NUM_KV + head) * GROUP + g, part = query * request.num_spans + span;
        if (request.num_spans == 1) {
#pragma unroll
            for (int d = 0; d < 2 * WORDS; d++) sum.x[d] = __fdividef(sum.x[d], total);
            store((u16*)request.out + query * HEAD_DIM, narrow(sum));
        } else {
#pragma unroll
            for (int d = 0; d < 2 * WORDS; d++) ((float*)request.out)[part * HEAD_DIM + 2 * WORDS * lane + d] = sum.x[d];
            if (lane == 0) request.part_max[part] = peak, request.part_sum[part] = total;
        }
    }
}
