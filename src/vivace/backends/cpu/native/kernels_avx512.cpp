// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
#include "kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace vivace {
namespace {

constexpr int W = 16, MAX_TILE = 4, INTEGER_TILE = 4, NUM_STREAMS = 2;
constexpr size_t AHEAD = 1024;  // bytes of weights to prefetch ahead

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
    if constexpr (OUT == 4 && ROWS == 4) {
        V quarters[4];  // of one row: the outputs as four blocks of four partial sums
        UNROLL for (int r = 0; r < 4; ++r) {
            V halves[2];
            UNROLL for (int i = 0; i < 2; ++i) {
                const V a = total[2 * i][r], b = total[2 * i + 1][r];
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

// Weights are unsigned in dpbusd. INT8 raises them by 128, so a group's eight partial sums start at
// -128 times their inputs. INT4 has the codes of four groups as four low halves, then four high
// halves; the last groups, if they are fewer than four, are in the same order.
inline void arrange(int kind, const int8_t* plain, int g, int count, int size, int8_t* codes,
                    int32_t* start) {
    if (kind == INT8) {
        memcpy(codes + g * GROUP, plain, size_t(size));
        for (int i = 0; i < MAX_LANES; ++i) {
            const int8_t* four = plain + 4 * i;
            start[g * MAX_LANES + i] = -128 * (four[0] + four[1] + four[2] + four[3]);
        }
        return;
    }
    const int first = g & ~3, num_near = count - first < 4 ? count - first : 4;
    int8_t* low = codes + first * GROUP + (g - first) * 16;
    memcpy(low, plain, 16);
    memcpy(low + num_near * 16, plain + 16, 16);
    start_int4(plain, start + first * MAX_LANES + (g - first) * 4);  // side by side
}

template <int OUT, int ROWS>
inline void dot_int8(const int8_t* w, const int8_t* x, const float* x_scale, const int32_t* start,
                     size_t in, float (&out)[OUT][ROWS]) {
    const __m512i flip = _mm512_set1_epi8(char(0x80));
    const __m512i lanes = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const size_t groups = size_t(num_groups(int(in)));
    V total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = splat(0.0f);
    const size_t ahead = OUT == 1 ? AHEAD : OUT * in;  // the next rows of weights
    size_t i = 0;
    for (; i + 64 <= in; i += 64) {  // two groups
        __m512i input[ROWS], first[ROWS];
        V scale[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const size_t at = size_t(r) * groups + i / GROUP;
            input[r] = _mm512_loadu_si512(x + size_t(r) * in + i);
            first[r] = _mm512_loadu_si512(start + at * MAX_LANES);
            const __m128d pair = _mm_load_sd(reinterpret_cast<const double*>(x_scale + at));
            scale[r] = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_castpd_ps(pair)));
        }
        UNROLL for (int o = 0; o < OUT; ++o) {
            const int8_t* from = w + size_t(o) * in + i;
            __builtin_prefetch(from + ahead);
            const __m512i weight = _mm512_xor_si512(_mm512_loadu_si512(from), flip);
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const __m512i sums = _mm512_dpbusd_epi32(first[r], weight, input[r]);
                total[o][r] = fma(_mm512_cvtepi32_ps(sums), scale[r], total[o][r]);
            }
        }
    }
    if (i < in) {  // inputs beyond the end are 0
        const size_t g = i / GROUP;
        const bool is_pair = g + 1 < groups;
        const __mmask64 bytes = ~__mmask64(0) >> (64 - (in - i));
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const size_t at = size_t(r) * groups + g;
            const __m512i input = _mm512_maskz_loadu_epi8(bytes, x + size_t(r) * in + i);
            const __m512i first = _mm512_maskz_loadu_epi32(__mmask16(is_pair ? 0xffff : 0xff),
                                                           start + at * MAX_LANES);
            const __m128 pair = _mm_maskz_loadu_ps(__mmask8(is_pair ? 3 : 1), x_scale + at);
            const V scale = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(pair));
            UNROLL for (int o = 0; o < OUT; ++o) {
                const __m512i weight =
                    _mm512_xor_si512(_mm512_maskz_loadu_epi8(bytes, w + size_t(o) * in + i), flip);
                const __m512i sums = _mm512_dpbusd_epi32(first, weight, input);
                total[o][r] = fma(_mm512_cvtepi32_ps(sums), scale, total[o][r]);
            }
        }
    }
    sum_tile(total, out);
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

#include "kernels_impl.h"

}  // namespace

const Kernels* avx512_kernels() {
    static const Kernels table = make_table("avx512");
    return &table;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace vivace

#endif
