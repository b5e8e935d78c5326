// Vectors of AVX-512 (F, BW, DQ, VL), and int4 products with VNNI. Included by the files of its
// instruction sets.
constexpr int W = 16, MAX_TILE = 4, INTEGER_TILE = 4, NUM_STREAMS = 2, ONE_ROW_TILE = 16;
constexpr size_t AHEAD = 1024;  // bytes of int4 weights to prefetch ahead

using V = __m512;

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline V load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V splat(float x) { return _mm512_set1_ps(x); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V vabs(V a) { return _mm512_abs_ps(a); }
inline V nearest(V a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V power_of_two(V a) {
    const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
}
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline void store_half(uint16_t* p, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline float sum(V a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float maximum(V a) { return _mm512_reduce_max_ps(a); }

// Sums the lanes of each vector in the order of `sum`. Sixteen vectors are summed together, which
// takes a quarter of the shuffles.
template <int OUT, int ROWS>
inline void sum_tile(const V (&total)[OUT][ROWS], float (&out)[OUT][ROWS]) {
    if constexpr (OUT * ROWS == 16) {
        const V* x = &total[0][0];
        V quarters[4];  // vectors r, 4 + r, 8 + r and 12 + r as four blocks of four partial sums
        UNROLL for (int r = 0; r < 4; ++r) {
            V halves[2];
            UNROLL for (int i = 0; i < 2; ++i) {
                const V a = x[8 * i + r], b = x[8 * i + 4 + r];
                halves[i] = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
            }
            quarters[r] = add(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                              _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
        }
        V pairs[2];
        UNROLL for (int i = 0; i < 2; ++i) {
            const V a = quarters[2 * i], b = quarters[2 * i + 1];
            pairs[i] = add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
        }
        store(&out[0][0], add(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),
                              _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd)));
    } else {
        UNROLL for (int o = 0; o < OUT; ++o)
            UNROLL for (int r = 0; r < ROWS; ++r) out[o][r] = sum(total[o][r]);
    }
}
#define HAS_SUM_TILE

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
