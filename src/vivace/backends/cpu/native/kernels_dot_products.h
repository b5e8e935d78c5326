// Integer products with the dot product instructions, and with the matrix instructions (SMMLA) where
// the compiler has them. Sums of integers are exact and all other operations are the same, so both
// give the same bits. Included by the files of ARM instruction sets after kernels_neon.h.
//
// Four groups are summed at a time: lane i of a vector is group i, so one conversion to float and one
// multiplication serve four groups.

constexpr int NUM_STREAMS = 1;
constexpr size_t AHEAD = 1024;  // bytes of weights to prefetch ahead
// A vector of inputs serves two outputs. SMMLA multiplies two rows with two outputs.
constexpr int INTEGER_TILE = 2;

inline void arrange(int kind, const int8_t* plain, int g, int, int size, int8_t* codes,
                    int32_t* start) {
    memcpy(codes + g * GROUP, plain, size_t(size));
    if (kind == INT4) start_int4(plain, start + g * MAX_LANES);
}

struct Group {
    int8x16_t low, high;  // inputs 0 to 15 and 16 to 31
};

// Rows of inputs. Rows of codes are `in` numbers long, those of scales and starts `groups`.
struct Rows {
    const int8_t* codes;
    const float* scale;
    const int32_t* start;
    size_t in, groups;

    Group load(int r, size_t g) const {
        const int8_t* from = codes + size_t(r) * in + g * GROUP;
        return {vld1q_s8(from), vld1q_s8(from + 16)};
    }
    float32x4_t scales(int r, size_t g) const { return vld1q_f32(scale + size_t(r) * groups + g); }
    int32x4_t starts(int r, size_t g) const {
        return vld1q_s32(start + (size_t(r) * groups + g) * MAX_LANES);
    }
};

// The last groups of inputs, fewer than four, with zeros beyond the end.
template <int ROWS>
struct RestRows {
    int8_t codes[ROWS][4 * GROUP] = {};
    float scale[ROWS][4] = {};
    int32_t start[ROWS][4 * MAX_LANES] = {};

    RestRows(const Rows& from, size_t g) {
        const size_t left = from.groups - g;
        for (size_t r = 0; r < ROWS; ++r) {
            memcpy(codes[r], from.codes + r * from.in + g * GROUP, from.in - g * GROUP);
            memcpy(scale[r], from.scale + r * from.groups + g, left * sizeof(float));
            memcpy(start[r], from.start + (r * from.groups + g) * MAX_LANES,
                   left * MAX_LANES * sizeof(int32_t));
        }
    }
    Rows rows() const { return {codes[0], scale[0], start[0], 4 * GROUP, 4}; }
};

struct Int8Weights {
    static constexpr bool HAS_STARTS = false;
    static constexpr size_t GROUP_BYTES = GROUP;
    const int8_t* codes;
    size_t in;

    Group load(int o, size_t g) const {
        const int8_t* from = codes + size_t(o) * in + g * GROUP;
        return {vld1q_s8(from), vld1q_s8(from + 16)};
    }
    float32x4_t scaled(int, size_t, float32x4_t x_scale) const { return x_scale; }
    void prefetch(int o, size_t g, size_t ahead) const {
        for (size_t i = 0; i < 4 * GROUP; i += 64)
            __builtin_prefetch(codes + size_t(o) * in + g * GROUP + i + ahead);
    }
};

struct Int4Weights {
    static constexpr bool HAS_STARTS = true;
    static constexpr size_t GROUP_BYTES = GROUP / 2;
    const uint8_t* codes;
    const uint16_t* scale;
    size_t groups;

    Group load(int o, size_t g) const {
        const uint8x16_t packed = vld1q_u8(codes + (size_t(o) * groups + g) * 16);
        return {vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))),
                vreinterpretq_s8_u8(vshrq_n_u8(packed, 4))};
    }
    float32x4_t scaled(int o, size_t g, float32x4_t x_scale) const {
        return vmulq_f32(load_half(scale + size_t(o) * groups + g), x_scale);
    }
    void prefetch(int o, size_t g, size_t ahead) const {
        __builtin_prefetch(codes + (size_t(o) * groups + g) * 16 + ahead);
    }
};

inline int32x4_t sum_lanes(const int32x4_t (&parts)[4]) {
    return vpaddq_s32(vpaddq_s32(parts[0], parts[1]), vpaddq_s32(parts[2], parts[3]));
}

// Turns four vectors of four numbers: lane j of vector i becomes lane i of vector j.
inline void transpose(int32x4_t (&x)[4]) {
    const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(x[0], x[1]));
    const int64x2_t b = vreinterpretq_s64_s32(vtrn2q_s32(x[0], x[1]));
    const int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(x[2], x[3]));
    const int64x2_t d = vreinterpretq_s64_s32(vtrn2q_s32(x[2], x[3]));
    x[0] = vreinterpretq_s32_s64(vzip1q_s64(a, c));
    x[1] = vreinterpretq_s32_s64(vzip1q_s64(b, d));
    x[2] = vreinterpretq_s32_s64(vzip2q_s64(a, c));
    x[3] = vreinterpretq_s32_s64(vzip2q_s64(b, d));
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// A group of two rows, of weights or of inputs: 8 numbers of each row per vector.
struct RowPair {
    int8x16_t parts[4];

    RowPair() = default;
    RowPair(const Group& a, const Group& b)
        : parts{first_halves(a.low, b.low), second_halves(a.low, b.low),
                first_halves(a.high, b.high), second_halves(a.high, b.high)} {}

    static int8x16_t first_halves(int8x16_t a, int8x16_t b) {
        return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
    }
    static int8x16_t second_halves(int8x16_t a, int8x16_t b) {
        return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
    }
};

// [input 0 * weights 0, input 0 * weights 1, input 1 * weights 0, input 1 * weights 1]
inline int32x4_t multiply_pairs(const RowPair& inputs, const RowPair& weights) {
    int32x4_t sums = vdupq_n_s32(0);
    for (int i = 0; i < 4; ++i) sums = vmmlaq_s32(sums, inputs.parts[i], weights.parts[i]);
    return sums;
}

// Adds four groups of two rows and two outputs at a time.
template <class Weights, int OUT, int ROWS>
inline void add_pairs(const Weights& weights, const Rows& rows, size_t g,
                      float32x4_t (&total)[OUT][ROWS]) {
    int32x4_t sums[OUT / 2][ROWS / 2][4];
    UNROLL for (int i = 0; i < 4; ++i) {
        RowPair inputs[ROWS / 2];
        UNROLL for (int r = 0; r < ROWS; r += 2)
            inputs[r / 2] = RowPair(rows.load(r, g + i), rows.load(r + 1, g + i));
        UNROLL for (int o = 0; o < OUT; o += 2) {
            const RowPair pair(weights.load(o, g + i), weights.load(o + 1, g + i));
            UNROLL for (int r = 0; r < ROWS; r += 2)
                sums[o / 2][r / 2][i] = multiply_pairs(inputs[r / 2], pair);
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
        int32x4_t start = vdupq_n_s32(0);
        if constexpr (Weights::HAS_STARTS) {
            int32x4_t starts[4];
            UNROLL for (int i = 0; i < 4; ++i) starts[i] = rows.starts(r, g + i);
            start = sum_lanes(starts);
        }
        UNROLL for (int o = 0; o < OUT; ++o) {
            if (r % 2 == 0 && o % 2 == 0) transpose(sums[o / 2][r / 2]);
            const int32x4_t four = vaddq_s32(sums[o / 2][r / 2][r % 2 * 2 + o % 2], start);
            total[o][r] = vfmaq_f32(total[o][r], vcvtq_f32_s32(four),
                                    weights.scaled(o, g, rows.scales(r, g)));
        }
    }
}
#endif

// Adds groups g to g + 3.
template <class Weights, int OUT, int ROWS>
inline void add_groups(const Weights& weights, const Rows& rows, size_t g,
                       float32x4_t (&total)[OUT][ROWS]) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (OUT % 2 == 0 && ROWS % 2 == 0) return add_pairs(weights, rows, g, total);
#endif
    UNROLL for (int o = 0; o < OUT; ++o) {
        Group weight[4];
        UNROLL for (int i = 0; i < 4; ++i) weight[i] = weights.load(o, g + i);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            int32x4_t parts[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                const Group input = rows.load(r, g + i);
                parts[i] = Weights::HAS_STARTS ? rows.starts(r, g + i) : vdupq_n_s32(0);
                parts[i] = vdotq_s32(parts[i], weight[i].low, input.low);
                parts[i] = vdotq_s32(parts[i], weight[i].high, input.high);
            }
            total[o][r] = vfmaq_f32(total[o][r], vcvtq_f32_s32(sum_lanes(parts)),
                                    weights.scaled(o, g, rows.scales(r, g)));
        }
    }
}

// Sums of the last groups, fewer than four, which are copied: groups beyond the end have zeros.
template <int OUT, int ROWS>
__attribute__((noinline)) void add_rest(Int8Weights weights, Rows rows, size_t g,
                                        float32x4_t (&total)[OUT][ROWS]) {
    const size_t size = rows.in - g * GROUP;
    int8_t codes[OUT][4 * GROUP] = {};
    for (size_t o = 0; o < OUT; ++o)
        memcpy(codes[o], weights.codes + o * weights.in + g * GROUP, size);
    const RestRows<ROWS> rest(rows, g);
    add_groups(Int8Weights{codes[0], 4 * GROUP}, rest.rows(), 0, total);
}

template <int OUT, int ROWS>
__attribute__((noinline)) void add_rest(Int4Weights weights, Rows rows, size_t g,
                                        float32x4_t (&total)[OUT][ROWS]) {
    const size_t left = rows.groups - g;
    uint8_t codes[OUT][4 * 16] = {};
    uint16_t scale[OUT][4] = {};
    for (size_t o = 0; o < OUT; ++o) {
        memcpy(codes[o], weights.codes + (o * weights.groups + g) * 16, left * 16);
        memcpy(scale[o], weights.scale + o * weights.groups + g, left * sizeof(uint16_t));
    }
    const RestRows<ROWS> rest(rows, g);
    add_groups(Int4Weights{codes[0], scale[0], 4}, rest.rows(), 0, total);
}

template <class Weights, int OUT, int ROWS>
inline void dot(const Weights& weights, const Rows& rows, size_t ahead, float (&out)[OUT][ROWS]) {
    float32x4_t total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = vdupq_n_f32(0.0f);
    size_t g = 0;
    for (; (g + 4) * GROUP <= rows.in; g += 4) {
        UNROLL for (int o = 0; o < OUT; ++o) weights.prefetch(o, g, ahead);
        add_groups(weights, rows, g, total);
    }
    if (g < rows.groups) {
        float32x4_t rest[OUT][ROWS] = {};
        add_rest(weights, rows, g, rest);
        UNROLL for (int o = 0; o < OUT; ++o)
            UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = add(total[o][r], rest[o][r]);
    }
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) out[o][r] = sum(total[o][r]);
}

// `ahead` reaches the next weights in the order of reading: of this row, or of the next rows.
template <int OUT, int ROWS>
inline void dot_int8(const int8_t* w, const int8_t* x, const float* x_scale, const int32_t* start,
                     size_t in, float (&out)[OUT][ROWS]) {
    const Rows rows{x, x_scale, start, in, size_t(num_groups(int(in)))};
    dot(Int8Weights{w, in}, rows, OUT == 1 ? AHEAD : OUT * in, out);
}

template <int OUT, int ROWS>
inline void dot_int4(const uint8_t* w, const uint16_t* w_scale, const int8_t* x,
                     const float* x_scale, const int32_t* start, size_t groups,
                     float (&out)[OUT][ROWS]) {
    const Rows rows{x, x_scale, start, groups * GROUP, groups};
    dot(Int4Weights{w, w_scale, groups}, rows, OUT == 1 ? AHEAD : OUT * groups * 16, out);
}
