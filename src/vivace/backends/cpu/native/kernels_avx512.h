// Vectors of AVX-512 (F, BW, DQ, VL). Included by the files of its instruction sets.
constexpr int W = 16, MAX_TILE = 4, ONE_ROW_TILE = 16;
constexpr bool READS_AHEAD = true;

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
