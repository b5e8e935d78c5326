// The functions of the table, over the vectors of one instruction set. No include guard and no
// templates of the standard library: this is compiled once per instruction set, with other flags.
//
// The including file defines in an anonymous namespace:
//   V, W                   a vector of W floats
//   load, load_bf16, load_half, store, store_half, splat, add, mul, div, fma, vmin, vmax, vabs,
//   nearest, power_of_two  on such vectors; vmax(a, b) is b where b is NaN
//   sum, maximum           of a vector
//   sum_tile               sums of all vectors of a tile, if HAS_SUM_TILE is defined
//   ONE_ROW_TILE           outputs per pass of float products with one row of inputs
//   READS_AHEAD            whether float products prefetch weights
//   round_row, multiply_int8, multiply_int4, if HAS_OTHER_INTEGERS is defined; otherwise:
//   store_codes            whole numbers to int8
//   MAX_TILE               rows of inputs per pass: 1 or 2, or 4 with 32 registers
//   arrange                finishes a rounded group of a row: order of codes, starts of sums
//   the names that kernels_integer_tiles.h needs

constexpr size_t MAX_AHEAD = 28 << 10;  // bytes of weights that the first-level cache holds
constexpr int MIN_BLOCK_ROWS = 8;  // rows for which widening a block of weights takes little time

#ifndef HAS_OTHER_INTEGERS
constexpr float MAX_CODE = 127.0f;

// Whether all numbers are finite; raises `largest` to the largest magnitude.
static bool scan(const float* x, int size, float& largest) {
    V top = splat(0.0f), check = splat(0.0f);
    int i = 0;
    for (; i + W <= size; i += W) {
        const V each = load(x + i);
        top = vmax(top, vabs(each));
        check = fma(each, splat(0.0f), check);
    }
    float rest = sum(check);
    largest = maximum(top);
    for (; i < size; ++i) {
        const float magnitude = x[i] < 0 ? -x[i] : x[i];
        rest += x[i] * 0.0f;
        if (magnitude > largest) largest = magnitude;
    }
    return rest == 0.0f;
}

// Rounds to -127..127 with one scale.
static void round_span(const float* x, int size, int8_t* codes, float* scale) {
    float largest;
    const bool is_finite = scan(x, size, largest);
    *scale = is_finite ? largest / MAX_CODE : bits_to_float(0x7fc00000);
    if (!is_finite || *scale == 0.0f) {
        memset(codes, 0, size_t(size));
        return;
    }
    const V divisor = splat(*scale), low = splat(-MAX_CODE), high = splat(MAX_CODE);
    int i = 0;
    for (; i + W <= size; i += W)
        store_codes(codes + i, vmin(high, vmax(low, nearest(div(load(x + i), divisor)))));
    for (; i < size; ++i) {
        const float code = __builtin_rintf(x[i] / *scale);
        codes[i] = int8_t(code < -MAX_CODE ? -MAX_CODE : code > MAX_CODE ? MAX_CODE : code);
    }
}

static void round_row(int kind, const float* x, int in, int8_t* codes, float* scale,
                      int32_t* start) {
    const int count = num_groups(in);
    for (int g = 0; g < count; ++g) {
        int8_t plain[GROUP] = {};
        const int at = g * GROUP, size = in - at < GROUP ? in - at : GROUP;
        round_span(x + at, size, plain, scale + g);
        arrange(kind, plain, g, count, size, codes, start);
    }
}

#endif

// -- float products ------------------------------------------------------------------------------

struct FloatRows {
    static constexpr size_t SIZE = 4;
    static V vector(const char* p) { return load(reinterpret_cast<const float*>(p)); }
    static float number(const char* p) { return *reinterpret_cast<const float*>(p); }
};

struct Bf16Rows {
    static constexpr size_t SIZE = 2;
    static V vector(const char* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
    static float number(const char* p) { return from_bf16(*reinterpret_cast<const uint16_t*>(p)); }
};

struct HalfRows {
    static constexpr size_t SIZE = 2;
    static V vector(const char* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }
    static float number(const char* p) { return from_half(*reinterpret_cast<const uint16_t*>(p)); }
};

#ifndef HAS_SUM_TILE
template <int OUT, int ROWS>
static inline void sum_tile(const V (&total)[OUT][ROWS], float (&out)[OUT][ROWS]) {
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) out[o][r] = sum(total[o][r]);
}
#endif

// Starts to read weights. Prefetchers of the hardware stop at every page.
template <int LEVEL>
static inline void read_ahead(const char* weights, size_t size) {
    if constexpr (READS_AHEAD)
        for (size_t i = 0; i < size; i += 64) __builtin_prefetch(weights + i, 0, 4 - LEVEL);
}

// One or two rows take less time than reading the weights. The next OUT outputs are read ahead if
// their weights have 16 bits and fit the first-level cache.
template <class Rows, int OUT, int ROWS>
static inline void dot_float(const char* w, size_t w_stride, const float* x, size_t in,
                             float (&out)[OUT][ROWS]) {
    V total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = splat(0.0f);
    const bool reads_ahead = Rows::SIZE == 2 && ROWS <= 2 && size_t(OUT) * w_stride <= MAX_AHEAD;
    size_t i = 0;
    for (; i + W <= in; i += W) {
        if (reads_ahead)
            read_ahead<1>(w + size_t(OUT) * (w_stride + i * Rows::SIZE), size_t(OUT) * W * Rows::SIZE);
        V input[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) input[r] = load(x + size_t(r) * in + i);
        UNROLL for (int o = 0; o < OUT; ++o) {
            const V weight = Rows::vector(w + size_t(o) * w_stride + i * Rows::SIZE);
            UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = fma(weight, input[r], total[o][r]);
        }
    }
    sum_tile(total, out);
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) {
            for (size_t j = i; j < in; ++j)
                out[o][r] += Rows::number(w + size_t(o) * w_stride + j * Rows::SIZE) *
                             x[size_t(r) * in + j];
        }
}

// -- products, by tiles of outputs and rows ----------------------------------------------------------

template <class Rows>
struct FloatTile {
    template <int OUT, int ROWS>
    static inline void compute(const Product& p, int o, int r, float (&out)[OUT][ROWS]) {
        const size_t in = size_t(p.matrix->in), stride = in * Rows::SIZE;
        const char* weight = static_cast<const char*>(p.matrix->weight) + size_t(o) * stride;
        dot_float<Rows, OUT, ROWS>(weight, stride, p.inputs.x + size_t(r) * in, in, out);
    }
};

template <class Tile, int OUT, int ROWS>
static inline void compute(const Product& p, int o, int r) {
    float out[OUT][ROWS];
    Tile::template compute<OUT, ROWS>(p, o, r, out);
    for (int j = 0; j < ROWS; ++j) {
        float* to = p.out + size_t(r + j) * p.stride + o;
        for (int i = 0; i < OUT; ++i) {
            float value = out[i][j];
            if (p.matrix->bias) value += p.matrix->bias[o + i];
            to[i] = p.adds ? to[i] + value : value;
        }
    }
}

template <class Tile, int OUT>
static inline void compute_rows(const Product& p, int o) {
    int r = 0;
    if constexpr (MAX_TILE >= 4)
        for (; r + 4 <= p.num_rows; r += 4) compute<Tile, OUT, 4>(p, o, r);
    if constexpr (MAX_TILE >= 2)
        for (; r + 2 <= p.num_rows; r += 2) compute<Tile, OUT, 2>(p, o, r);
    for (; r < p.num_rows; ++r) compute<Tile, OUT, 1>(p, o, r);
}

// Computes the outputs from `o` on.
template <class Tile, int OUT>
static void multiply_tiles(const Product& p, int o) {
    for (; o + OUT <= p.end; o += OUT) compute_rows<Tile, OUT>(p, o);
    for (; o < p.end; ++o) compute_rows<Tile, 1>(p, o);
}

// The weights of the next block, which are read ahead in parts.
struct NextBlock {
    const char* weights;
    size_t part;  // bytes for each tile of the current block
};

// ROWS rows and all outputs of a block.
template <int ROWS>
static inline void compute_outputs(const Product& p, int r, NextBlock& next) {
    int o = 0;
    for (; o + 4 <= p.end; o += 4, next.weights += next.part) {
        read_ahead<2>(next.weights, next.part);
        compute<FloatTile<FloatRows>, 4, ROWS>(p, o, r);
    }
    for (; o < p.end; ++o) compute<FloatTile<FloatRows>, 1, ROWS>(p, o, r);
}

// The weights of a block are read once from each level of the caches, and the rows once per block.
static void multiply_block(const Product& p, NextBlock next) {
    int r = 0;
    if constexpr (MAX_TILE >= 4)
        for (; r + 4 <= p.num_rows; r += 4) compute_outputs<4>(p, r, next);
    if constexpr (MAX_TILE >= 2)
        for (; r + 2 <= p.num_rows; r += 2) compute_outputs<2>(p, r, next);
    for (; r < p.num_rows; ++r) compute_outputs<1>(p, r, next);
}

template <class Rows>
static inline void widen(const char* from, size_t size, float* to) {
    size_t i = 0;
    for (; i + W <= size; i += W) store(to + i, Rows::vector(from + i * Rows::SIZE));
    for (; i < size; ++i) to[i] = Rows::number(from + i * Rows::SIZE);
}

// Many rows: weights are widened in blocks.
template <class Rows>
static void multiply_widened(const Product& p) {
    const size_t in = size_t(p.matrix->in), stride = in * Rows::SIZE;
    const char* weight = static_cast<const char*>(p.matrix->weight);
    Matrix block = *p.matrix;
    block.kind = F32;
    block.weight = p.scratch;
    for (int o = p.begin, most = block_outputs(p.matrix->in); o < p.end; o += most) {
        block.out = p.end - o < most ? p.end - o : most;
        const char* from = weight + size_t(o) * stride;
        widen<Rows>(from, size_t(block.out) * in, reinterpret_cast<float*>(p.scratch));
        if (p.matrix->bias) block.bias = p.matrix->bias + o;
        Product part = p;
        part.matrix = &block;
        part.begin = 0;
        part.end = block.out;
        part.out = p.out + o;
        const size_t size = size_t(block.out) * stride;
        const size_t num_tiles = size_t(p.num_rows + MAX_TILE - 1) / MAX_TILE * size_t(block.out + 3) / 4;
        multiply_block(part, {from + size, (size / num_tiles + 63) / 64 * 64});
    }
}

// The sums of an output and a row run in one order, for any number of rows.
template <class Rows>
static void multiply_floats(const Product& p) {
    if (p.num_rows >= MIN_BLOCK_ROWS && p.scratch) return multiply_widened<Rows>(p);
    if (p.num_rows > 1) return multiply_tiles<FloatTile<Rows>, 4>(p, p.begin);
    int o = p.begin;
    for (; o + ONE_ROW_TILE <= p.end; o += ONE_ROW_TILE)
        compute<FloatTile<Rows>, ONE_ROW_TILE, 1>(p, o, 0);
    multiply_tiles<FloatTile<Rows>, 4>(p, o);
}

#ifndef HAS_OTHER_INTEGERS
#include "kernels_integer_tiles.h"
#endif

static void multiply(const Product& p) {
    switch (p.matrix->kind) {
        case INT8: return multiply_int8(p);
        case INT4: return multiply_int4(p);
        case BF16: return multiply_floats<Bf16Rows>(p);
        case F16: return multiply_floats<HalfRows>(p);
        default: return multiply_floats<FloatRows>(p);
    }
}

// -- norm, gate, attention -------------------------------------------------------------------------

static void normalise(const float* x, const float* weight, int size, float eps, float* out) {
    V total = splat(0.0f);
    int i = 0;
    for (; i + W <= size; i += W) {
        const V each = load(x + i);
        total = fma(each, each, total);
    }
    float power = sum(total);
    for (; i < size; ++i) power += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(power / float(size) + eps);
    const V scale = splat(factor);
    for (i = 0; i + W <= size; i += W)
        store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
    for (; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// e^x within 2 units in the last place; NaN stays NaN.
static inline V exponential(V x) {
    x = vmax(splat(-87.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504088896341f)));
    V r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    V p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = add(fma(mul(r, r), p, r), splat(1.0f));
    return mul(p, power_of_two(n));
}

static inline V silu(V x) {
    return div(x, add(splat(1.0f), exponential(mul(x, splat(-1.0f)))));
}

static void gate(float* gate, const float* up, int size) {
    int i = 0;
    for (; i + W <= size; i += W) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
    for (; i < size; ++i) {
        float one[W] = {gate[i]};
        store(one, silu(load(one)));
        gate[i] = one[0] * up[i];
    }
}

struct FloatCache {
    static constexpr size_t SIZE = 4;
    static V vector(const char* p) { return load(reinterpret_cast<const float*>(p)); }
};

struct HalfCache {
    static constexpr size_t SIZE = 2;
    static V vector(const char* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }
};

// Products of NUM queries and KEYS consecutive keys, times the scale. Sums of several keys do not wait
// for each other.
template <class Cache, int NUM, int KEYS>
static inline void score_keys(const Attention& a, const char* keys, const float* q, float scale,
                              float* out) {
    const size_t dim = size_t(a.head_dim);
    V total[KEYS][NUM];
    UNROLL for (int j = 0; j < KEYS; ++j)
        UNROLL for (int i = 0; i < NUM; ++i) total[j][i] = splat(0.0f);
    for (size_t d = 0; d < dim; d += W) {
        V query[NUM];
        UNROLL for (int i = 0; i < NUM; ++i) query[i] = load(q + size_t(i) * dim + d);
        UNROLL for (int j = 0; j < KEYS; ++j) {
            const V each = Cache::vector(keys + (size_t(j) * dim + d) * Cache::SIZE);
            UNROLL for (int i = 0; i < NUM; ++i) total[j][i] = fma(query[i], each, total[j][i]);
        }
    }
    UNROLL for (int j = 0; j < KEYS; ++j)
        UNROLL for (int i = 0; i < NUM; ++i)
            out[size_t(i) * size_t(a.length) + size_t(j)] = sum(total[j][i]) * scale;
}

// Products of NUM queries and all keys, times the scale.
template <class Cache, int NUM>
static inline void score(const Attention& a, const float* q, float scale, float* out) {
    constexpr int KEYS = 4;
    const size_t row = size_t(a.head_dim) * Cache::SIZE;
    for (int start = 0; start < a.length; start += PAGE) {
        const char* key = a.pages[start / PAGE] + a.keys;
        const int end = a.length - start < PAGE ? a.length : start + PAGE;
        int j = start;
        for (; j + KEYS <= end; j += KEYS, key += KEYS * row)
            score_keys<Cache, NUM, KEYS>(a, key, q, scale, out + j);
        for (; j < end; ++j, key += row) score_keys<Cache, NUM, 1>(a, key, q, scale, out + j);
    }
}

static inline void soften(float* x, int size) {
    float top = x[0];
    for (int i = 1; i < size; ++i) top = x[i] > top ? x[i] : top;
    V total = splat(0.0f);
    int i = 0;
    for (; i + W <= size; i += W) {
        const V each = exponential(add(load(x + i), splat(-top)));
        total = add(total, each);
        store(x + i, each);
    }
    float all = sum(total);
    for (; i < size; ++i) {
        float one[W] = {x[i] - top};
        store(one, exponential(load(one)));
        x[i] = one[0];
        all += one[0];
    }
    const float factor = 1.0f / all;
    for (i = 0; i < size; ++i) x[i] *= factor;
}

// SPAN vectors of the weighted sums of values, of NUM queries.
template <class Cache, int NUM, int SPAN>
static inline void blend(const Attention& a, const float* weights, int d, float* out) {
    const int dim = a.head_dim;
    V total[NUM][SPAN];
    for (int i = 0; i < NUM; ++i)
        for (int s = 0; s < SPAN; ++s) total[i][s] = splat(0.0f);
    for (int start = 0; start < a.length; start += PAGE) {
        const char* value = a.pages[start / PAGE] + a.values + size_t(d) * Cache::SIZE;
        const int end = a.length - start < PAGE ? a.length : start + PAGE;
        for (int j = start; j < end; ++j, value += size_t(dim) * Cache::SIZE) {
            V weight[NUM];
            for (int i = 0; i < NUM; ++i) weight[i] = splat(weights[size_t(i) * a.length + j]);
            for (int s = 0; s < SPAN; ++s) {
                const V each = Cache::vector(value + size_t(s) * W * Cache::SIZE);
                for (int i = 0; i < NUM; ++i) total[i][s] = fma(weight[i], each, total[i][s]);
            }
        }
    }
    for (int i = 0; i < NUM; ++i)
        for (int s = 0; s < SPAN; ++s) store(out + i * dim + d + s * W, total[i][s]);
}

template <class Cache, int NUM>
static inline void attend_few(const Attention& a, int first) {
    const int dim = a.head_dim;
    float* weights = a.weights + size_t(first) * a.length;
    float* out = a.out + size_t(first) * dim;
    score<Cache, NUM>(a, a.queries + size_t(first) * dim, 1.0f / __builtin_sqrtf(float(dim)),
                      weights);
    for (int i = 0; i < NUM; ++i) soften(weights + size_t(i) * a.length, a.length);
    int d = 0;
    for (; d + 4 * W <= dim; d += 4 * W) blend<Cache, NUM, 4>(a, weights, d, out);
    for (; d < dim; d += W) blend<Cache, NUM, 1>(a, weights, d, out);
}

template <class Cache>
static inline void attend_all(const Attention& a) {
    int first = 0;
    for (; first + 2 <= a.num_queries; first += 2) attend_few<Cache, 2>(a, first);
    if (first < a.num_queries) attend_few<Cache, 1>(a, first);
}

static void attend(const Attention& a) {
    if (a.is_half)
        attend_all<HalfCache>(a);
    else
        attend_all<FloatCache>(a);
}

static void store_half_row(const float* x, int size, void* out) {
    uint16_t* to = static_cast<uint16_t*>(out);
    int i = 0;
    for (; i + W <= size; i += W) store_half(to + i, load(x + i));
    for (; i < size; ++i) to[i] = to_half(x[i]);
}

static Kernels make_table(const char* name) {
    return {name, round_row, multiply, normalise, gate, attend, store_half_row};
}
