// Integer products with the dot product instructions, and with the matrix instructions (SMMLA) where
// the compiler has them. Sums of integers are exact and all other operations are the same, so both
// give the same bits. Included by the files of ARM instruction sets after kernels_neon.h.

inline void arrange(int kind, const int8_t* plain, int g, int, int size, int8_t* codes,
                    int32_t* start) {
    memcpy(codes + g * GROUP, plain, size_t(size));
    if (kind == INT4) start_int4(plain, start + g * MAX_LANES);
}

// The sums of each vector's lanes: converting one vector of four sums takes less time than
// converting four.
inline float32x4_t sum_lanes(const int32x4_t (&parts)[4]) {
    const int32x4_t sums = vpaddq_s32(vpaddq_s32(parts[0], parts[1]), vpaddq_s32(parts[2], parts[3]));
    return vcvtq_f32_s32(sums);
}

inline float32x4_t sum_lanes(const int32x4_t (&parts)[1]) {
    return vcvtq_f32_s32(vdupq_n_s32(vaddvq_s32(parts[0])));
}

template <int OUT, int ROWS>
inline void write_totals(const float32x4_t (&total)[ROWS], float (&out)[OUT][ROWS]) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
        float four[4];
        vst1q_f32(four, total[r]);
        UNROLL for (int o = 0; o < OUT; ++o) out[o][r] = four[o];
    }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
inline int8x16_t pair_low(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

inline int8x16_t pair_high(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

// A group of two rows, of weights or of inputs: 8 numbers of each row per vector.
struct RowPair {
    int8x16_t parts[4];
    RowPair(int8x16_t low_a, int8x16_t low_b, int8x16_t high_a, int8x16_t high_b)
        : parts{pair_low(low_a, low_b), pair_high(low_a, low_b), pair_low(high_a, high_b),
                pair_high(high_a, high_b)} {}
};

// [input 0 * weights 0, input 0 * weights 1, input 1 * weights 0, input 1 * weights 1]
inline int64x2_t multiply_pairs(const RowPair& inputs, const RowPair& weights) {
    int32x4_t sums = vdupq_n_s32(0);
    for (int i = 0; i < 4; ++i) sums = vmmlaq_s32(sums, inputs.parts[i], weights.parts[i]);
    return vreinterpretq_s64_s32(sums);
}

// Sums of two rows of inputs with four outputs.
inline void multiply_four(const RowPair& inputs, const RowPair& first, const RowPair& second,
                          int32x4_t& even, int32x4_t& odd) {
    const int64x2_t left = multiply_pairs(inputs, first), right = multiply_pairs(inputs, second);
    even = vreinterpretq_s32_s64(vzip1q_s64(left, right));
    odd = vreinterpretq_s32_s64(vzip2q_s64(left, right));
}
#endif

// Adds group g + LANE; lane o of a total is output o. `scale` has the scales of four groups.
template <int LANE, int OUT, int ROWS>
inline void add_int8(const int8_t* w, const int8_t* x, size_t in, size_t g,
                     const float32x4_t (&scale)[ROWS], float32x4_t (&total)[ROWS]) {
    const size_t at = (g + LANE) * GROUP;
    int8x16_t low[OUT], high[OUT];
    UNROLL for (int o = 0; o < OUT; ++o) {
        if (LANE % 2 == 0) __builtin_prefetch(w + size_t(o + OUT) * in + at);  // the next rows
        low[o] = vld1q_s8(w + size_t(o) * in + at);
        high[o] = vld1q_s8(w + size_t(o) * in + at + 16);
    }
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (OUT == 4 && ROWS % 2 == 0) {
        const RowPair near(low[0], low[1], high[0], high[1]), far(low[2], low[3], high[2], high[3]);
        for (int r = 0; r < ROWS; r += 2) {
            const int8_t *a = x + size_t(r) * in + at, *b = a + in;
            const RowPair inputs(vld1q_s8(a), vld1q_s8(b), vld1q_s8(a + 16), vld1q_s8(b + 16));
            int32x4_t even, odd;
            multiply_four(inputs, near, far, even, odd);
            total[r] = vfmaq_laneq_f32(total[r], vcvtq_f32_s32(even), scale[r], LANE);
            total[r + 1] = vfmaq_laneq_f32(total[r + 1], vcvtq_f32_s32(odd), scale[r + 1], LANE);
        }
        return;
    }
#endif
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const int8x16_t first = vld1q_s8(x + size_t(r) * in + at);
        const int8x16_t second = vld1q_s8(x + size_t(r) * in + at + 16);
        int32x4_t parts[OUT];
        UNROLL for (int o = 0; o < OUT; ++o)
            parts[o] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low[o], first), high[o], second);
        total[r] = vfmaq_laneq_f32(total[r], sum_lanes(parts), scale[r], LANE);
    }
}

template <int OUT, int ROWS>
inline void dot_int8(const int8_t* w, const int8_t* x, const float* x_scale, const int32_t*,
                     size_t in, float (&out)[OUT][ROWS]) {
    const size_t groups = size_t(num_groups(int(in))), whole = in / GROUP;
    float32x4_t total[ROWS], scale[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) total[r] = vdupq_n_f32(0.0f);
    size_t g = 0;
    for (; g + 4 <= whole; g += 4) {
        UNROLL for (int r = 0; r < ROWS; ++r) scale[r] = vld1q_f32(x_scale + size_t(r) * groups + g);
        add_int8<0, OUT>(w, x, in, g, scale, total);
        add_int8<1, OUT>(w, x, in, g, scale, total);
        add_int8<2, OUT>(w, x, in, g, scale, total);
        add_int8<3, OUT>(w, x, in, g, scale, total);
    }
    for (; g < whole; ++g) {
        UNROLL for (int r = 0; r < ROWS; ++r) scale[r] = vdupq_n_f32(x_scale[size_t(r) * groups + g]);
        add_int8<0, OUT>(w, x, in, g, scale, total);
    }
    write_totals<OUT>(total, out);
    for (int o = 0; o < OUT && whole < groups; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) {
            int32_t rest = 0;
            for (size_t j = whole * GROUP; j < in; ++j)
                rest += int32_t(w[size_t(o) * in + j]) * x[size_t(r) * in + j];
            out[o][r] += float(rest) * x_scale[size_t(r) * groups + whole];
        }
}

// Adds group g + LANE; lane o of `w_scale` is the scale of output o.
template <int LANE, int OUT, int ROWS>
inline void add_int4(const uint8_t* w, const int8_t* x, const int32_t* start, size_t count,
                     size_t g, float32x4_t w_scale, const float32x4_t (&scale)[ROWS],
                     float32x4_t (&total)[ROWS]) {
    int8x16_t low[OUT], high[OUT];
    UNROLL for (int o = 0; o < OUT; ++o) {
        const uint8_t* from = w + (size_t(o) * count + g + LANE) * 16;
        if (LANE == 0) __builtin_prefetch(from + OUT * count * 16);  // the next rows
        const uint8x16_t packed = vld1q_u8(from);
        low[o] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        high[o] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
    }
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (OUT == 4 && ROWS % 2 == 0) {
        const RowPair near(low[0], low[1], high[0], high[1]), far(low[2], low[3], high[2], high[3]);
        for (int r = 0; r < ROWS; r += 2) {
            const size_t at = size_t(r) * count + g + LANE, next = at + count;
            const int8_t *a = x + at * GROUP, *b = x + next * GROUP;
            const RowPair inputs(vld1q_s8(a), vld1q_s8(b), vld1q_s8(a + 16), vld1q_s8(b + 16));
            int32x4_t even, odd;
            multiply_four(inputs, near, far, even, odd);
            even = vaddq_s32(even, vdupq_n_s32(vaddvq_s32(vld1q_s32(start + at * MAX_LANES))));
            odd = vaddq_s32(odd, vdupq_n_s32(vaddvq_s32(vld1q_s32(start + next * MAX_LANES))));
            total[r] = vfmaq_f32(total[r], vcvtq_f32_s32(even),
                                 vmulq_laneq_f32(w_scale, scale[r], LANE));
            total[r + 1] = vfmaq_f32(total[r + 1], vcvtq_f32_s32(odd),
                                     vmulq_laneq_f32(w_scale, scale[r + 1], LANE));
        }
        return;
    }
#endif
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const size_t at = size_t(r) * count + g + LANE;
        const int8x16_t first = vld1q_s8(x + at * GROUP), second = vld1q_s8(x + at * GROUP + 16);
        const int32x4_t begin = vld1q_s32(start + at * MAX_LANES);
        int32x4_t parts[OUT];
        UNROLL for (int o = 0; o < OUT; ++o)
            parts[o] = vdotq_s32(vdotq_s32(begin, low[o], first), high[o], second);
        total[r] = vfmaq_f32(total[r], sum_lanes(parts), vmulq_laneq_f32(w_scale, scale[r], LANE));
    }
}

// Scales of four groups, from [outputs, groups] to a vector of outputs for each group.
inline void turn_scales(const uint16_t* p, size_t stride, float32x4_t (&out)[4]) {
    const uint16x4_t a = vld1_u16(p), b = vld1_u16(p + stride);
    const uint16x4_t c = vld1_u16(p + 2 * stride), d = vld1_u16(p + 3 * stride);
    const uint32x2_t ab0 = vreinterpret_u32_u16(vzip1_u16(a, b));
    const uint32x2_t ab1 = vreinterpret_u32_u16(vzip2_u16(a, b));
    const uint32x2_t cd0 = vreinterpret_u32_u16(vzip1_u16(c, d));
    const uint32x2_t cd1 = vreinterpret_u32_u16(vzip2_u16(c, d));
    out[0] = vcvt_f32_f16(vreinterpret_f16_u32(vzip1_u32(ab0, cd0)));
    out[1] = vcvt_f32_f16(vreinterpret_f16_u32(vzip2_u32(ab0, cd0)));
    out[2] = vcvt_f32_f16(vreinterpret_f16_u32(vzip1_u32(ab1, cd1)));
    out[3] = vcvt_f32_f16(vreinterpret_f16_u32(vzip2_u32(ab1, cd1)));
}

template <int OUT, int ROWS>
inline void dot_int4(const uint8_t* w, const uint16_t* w_scale, const int8_t* x,
                     const float* x_scale, const int32_t* start, size_t count,
                     float (&out)[OUT][ROWS]) {
    float32x4_t total[ROWS], scale[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) total[r] = vdupq_n_f32(0.0f);
    size_t g = 0;
    for (; OUT == 4 && g + 4 <= count; g += 4) {
        float32x4_t weights[4];
        turn_scales(w_scale + g, count, weights);
        UNROLL for (int r = 0; r < ROWS; ++r) scale[r] = vld1q_f32(x_scale + size_t(r) * count + g);
        add_int4<0, OUT>(w, x, start, count, g, weights[0], scale, total);
        add_int4<1, OUT>(w, x, start, count, g, weights[1], scale, total);
        add_int4<2, OUT>(w, x, start, count, g, weights[2], scale, total);
        add_int4<3, OUT>(w, x, start, count, g, weights[3], scale, total);
    }
    for (; g < count; ++g) {
        float weights[4] = {};
        UNROLL for (int o = 0; o < OUT; ++o) weights[o] = from_half(w_scale[size_t(o) * count + g]);
        UNROLL for (int r = 0; r < ROWS; ++r) scale[r] = vdupq_n_f32(x_scale[size_t(r) * count + g]);
        add_int4<0, OUT>(w, x, start, count, g, vld1q_f32(weights), scale, total);
    }
    write_totals<OUT>(total, out);
}
