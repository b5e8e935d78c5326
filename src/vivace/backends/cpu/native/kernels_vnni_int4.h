// int4 products with AVX-512 VNNI. Included after kernels_avx512.h.
constexpr int INTEGER_TILE = 4, NUM_STREAMS = 2;
constexpr size_t AHEAD = 1024;  // bytes of weights to prefetch ahead

inline void store_codes(int8_t* p, V a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}

// Weights are unsigned in dpbusd, so sums start below 0. INT8 raises weights by 128; a group has one
// start. INT4 has the codes of four groups as four low halves, then four high halves; the last groups,
// if they are fewer than four, are in the same order.
inline void arrange(int kind, const int8_t* plain, int g, int count, int size, int8_t* codes,
                    int32_t* start) {
    if (kind == INT8) {
        memcpy(codes + g * GROUP, plain, size_t(size));
        start[g] = 0;
        for (int i = 0; i < GROUP; ++i) start[g] -= 128 * plain[i];
        return;
    }
    const int first = g & ~3, num_near = count - first < 4 ? count - first : 4;
    int8_t* low = codes + first * GROUP + (g - first) * 16;
    memcpy(low, plain, 16);
    memcpy(low + num_near * 16, plain + 16, 16);
    start_int4(plain, start + first * MAX_LANES + (g - first) * 4);  // side by side
}

// Adds `left` groups from g on: four, or the last ones. Masks of all lanes are no instructions where
// `left` is a constant.
template <int OUT, int ROWS>
inline __attribute__((always_inline)) void add_int4(const uint8_t* w, const uint16_t* w_scale,
                                                    const int8_t* x, const float* x_scale,
                                                    const int32_t* start, size_t count, size_t g,
                                                    size_t left, V (&total)[OUT][ROWS]) {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __mmask64 bytes = ~__mmask64(0) >> (64 - left * 16);
    const __mmask16 words = __mmask16(0xffff >> (16 - left * 4));
    const __mmask8 scales = __mmask8(0xff >> (8 - left));
    UNROLL for (int o = 0; o < OUT; ++o) {
        const size_t row = size_t(o) * count + g;
        __builtin_prefetch(w + row * 16 + (OUT == 1 ? AHEAD : OUT * count * 16));
        const __m512i packed = _mm512_maskz_loadu_epi8(bytes, w + row * 16);
        const __m512i low = _mm512_and_si512(packed, mask);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
        const __m128 scale = _mm_cvtph_ps(_mm_maskz_loadu_epi16(scales, w_scale + row));
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const size_t at = size_t(r) * count + g;
            const int8_t* codes = x + at * GROUP;
            __m512i sums = _mm512_maskz_loadu_epi32(words, start + at * MAX_LANES);
            sums = _mm512_dpbusd_epi32(sums, low, _mm512_maskz_loadu_epi8(bytes, codes));
            sums = _mm512_dpbusd_epi32(sums, high,
                                       _mm512_maskz_loadu_epi8(bytes, codes + left * 16));
            const __m128 both = _mm_mul_ps(scale, _mm_maskz_loadu_ps(scales, x_scale + at));
            const V spread = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(both));
            total[o][r] = fma(_mm512_cvtepi32_ps(sums), spread, total[o][r]);
        }
    }
}

template <int OUT, int ROWS>
inline void dot_int4(const uint8_t* w, const uint16_t* w_scale, const int8_t* x,
                     const float* x_scale, const int32_t* start, size_t count,
                     float (&out)[OUT][ROWS]) {
    V total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = splat(0.0f);
    size_t g = 0;
    for (; g + 4 <= count; g += 4) add_int4(w, w_scale, x, x_scale, start, count, g, 4, total);
    if (g < count) add_int4(w, w_scale, x, x_scale, start, count, g, count - g, total);
    sum_tile(total, out);
}
