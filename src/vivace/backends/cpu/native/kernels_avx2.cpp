// x86-64 with AVX2, FMA and F16C.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace vivace {
namespace {

constexpr int W = 8, MAX_TILE = 2, INTEGER_TILE = 4, NUM_STREAMS = 2, ONE_ROW_TILE = 8;
constexpr bool READS_AHEAD = true;
constexpr size_t AHEAD = 1024;  // bytes of weights to prefetch ahead

using V = __m256;

inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline V load_half(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline V splat(float x) { return _mm256_set1_ps(x); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
inline V vabs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline V nearest(V a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V power_of_two(V a) {
    const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
inline void store(float* p, V a) { _mm256_storeu_ps(p, a); }
inline void store_half(uint16_t* p, V a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline float sum(V a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// Sums the lanes of eight vectors in the order of `sum`.
inline void sum_eight(const V* x, float* out) {
    V halves[4];  // of vectors i and i + 4
    UNROLL for (int i = 0; i < 4; ++i)
        halves[i] = add(_mm256_permute2f128_ps(x[i], x[i + 4], 0x20),
                        _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
    V pairs[2];
    UNROLL for (int i = 0; i < 2; ++i) {
        const V a = halves[2 * i], b = halves[2 * i + 1];
        pairs[i] = add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    }
    store(out, add(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88),
                   _mm256_shuffle_ps(pairs[0], pairs[1], 0xdd)));
}

template <int OUT, int ROWS>
inline void sum_tile(const V (&total)[OUT][ROWS], float (&out)[OUT][ROWS]) {
    constexpr int SIZE = OUT * ROWS;
    const V* x = &total[0][0];
    float* to = &out[0][0];
    UNROLL for (int i = 0; i + 8 <= SIZE; i += 8) sum_eight(x + i, to + i);
    UNROLL for (int i = SIZE / 8 * 8; i < SIZE; ++i) to[i] = sum(x[i]);
}
#define HAS_SUM_TILE

inline float maximum(V a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline void store_codes(int8_t* p, V a) {
    const __m256i whole = _mm256_cvtps_epi32(a);
    const __m128i pairs =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(pairs, pairs));
}

// INT4: codes of two groups are both low halves, then both high halves; a last odd group is in
// plain order.
inline void arrange(int kind, const int8_t* plain, int g, int count, int size, int8_t* codes,
                    int32_t* start) {
    if (kind == INT8) {
        memcpy(codes + g * GROUP, plain, size_t(size));
        return;
    }
    start_int4(plain, start + g * MAX_LANES);
    const bool is_odd = g % 2 == 1, is_last = g + 1 == count && !is_odd;
    int8_t* low = codes + (g - is_odd) * GROUP + is_odd * 16;
    memcpy(low, plain, 16);
    memcpy(low + (is_last ? 16 : 32), plain + 16, 16);
}

inline __m256i widen(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <int OUT, int ROWS>
inline void dot_int8(const int8_t* w, const int8_t* x, const float* x_scale, const int32_t*,
                     size_t in, float (&out)[OUT][ROWS]) {
    const size_t groups = size_t(num_groups(int(in))), whole = in / GROUP;
    const size_t ahead = OUT == 1 ? AHEAD : OUT * in;  // the next rows of weights
    V total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = splat(0.0f);
    for (size_t g = 0; g < whole; ++g) {
        const size_t at = g * GROUP;
        __m256i first[ROWS], second[ROWS];
        V scale[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) {
            first[r] = widen(x + size_t(r) * in + at);
            second[r] = widen(x + size_t(r) * in + at + 16);
            scale[r] = splat(x_scale[size_t(r) * groups + g]);
        }
        UNROLL for (int o = 0; o < OUT; ++o) {
            const int8_t* from = w + size_t(o) * in + at;
            if (g % 2 == 0) __builtin_prefetch(from + ahead);
            const __m256i low = widen(from), high = widen(from + 16);
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(low, first[r]),
                                                      _mm256_madd_epi16(high, second[r]));
                total[o][r] = fma(_mm256_cvtepi32_ps(sums), scale[r], total[o][r]);
            }
        }
    }
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) {
            out[o][r] = sum(total[o][r]);
            if (whole == groups) continue;
            int32_t rest = 0;
            for (size_t j = whole * GROUP; j < in; ++j)
                rest += int32_t(w[size_t(o) * in + j]) * x[size_t(r) * in + j];
            out[o][r] += float(rest) * x_scale[size_t(r) * groups + whole];
        }
}

inline __m256i load_bytes(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// The starts of two groups' sums.
inline __m256i load_starts(const int32_t* p) {
    const __m128i* from = reinterpret_cast<const __m128i*>(p);
    return _mm256_set_m128i(_mm_loadu_si128(from + MAX_LANES / 4), _mm_loadu_si128(from));
}

// Sums of two groups, in four lanes each.
inline __m256i pair_sums(__m256i low, __m256i high, __m256i x_low, __m256i x_high, __m256i start) {
    const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(low, x_low),
                                              _mm256_maddubs_epi16(high, x_high));
    return _mm256_add_epi32(start, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}

// Two scales, each in four lanes.
inline __m256 spread(float first, float second) {
    return _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first));
}

template <int OUT, int ROWS>
inline void dot_int4(const uint8_t* w, const uint16_t* w_scale, const int8_t* x,
                     const float* x_scale, const int32_t* start, size_t count,
                     float (&out)[OUT][ROWS]) {
    const __m256i mask = _mm256_set1_epi8(15);
    const size_t ahead = OUT == 1 ? AHEAD : OUT * count * 16;  // the next rows of weights
    V total[OUT][ROWS];
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) total[o][r] = splat(0.0f);
    size_t g = 0;
    for (; g + 2 <= count; g += 2) {
        UNROLL for (int o = 0; o < OUT; ++o) {
            const uint8_t* from = w + (size_t(o) * count + g) * 16;
            if (g % 4 == 0) __builtin_prefetch(from + ahead);
            const __m256i packed = load_bytes(from);
            const __m256i low = _mm256_and_si256(packed, mask);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
            const uint16_t* scale = w_scale + size_t(o) * count + g;
            const float first = _cvtsh_ss(scale[0]), second = _cvtsh_ss(scale[1]);
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const size_t at = size_t(r) * count + g;
                const int8_t* codes = x + at * GROUP;
                const __m256i sums = pair_sums(low, high, load_bytes(codes), load_bytes(codes + 32),
                                               load_starts(start + at * MAX_LANES));
                const V both = spread(first * x_scale[at], second * x_scale[at + 1]);
                total[o][r] = fma(_mm256_cvtepi32_ps(sums), both, total[o][r]);
            }
        }
    }
    UNROLL for (int o = 0; o < OUT; ++o)
        UNROLL for (int r = 0; r < ROWS; ++r) {
            out[o][r] = sum(total[o][r]);
            if (g == count) continue;
            const uint8_t* packed = w + (size_t(o) * count + g) * 16;
            const size_t at = size_t(r) * count + g;
            const int32_t* first = start + at * MAX_LANES;
            int32_t part = first[0] + first[1] + first[2] + first[3];
            for (int i = 0; i < 16; ++i)
                part += (packed[i] & 15) * x[at * GROUP + i] +
                        (packed[i] >> 4) * x[at * GROUP + 16 + i];
            out[o][r] += float(part) * (x_scale[at] * _cvtsh_ss(w_scale[size_t(o) * count + g]));
        }
}

#include "kernels_impl.h"

}  // namespace

const Kernels* avx2_kernels() {
    static const Kernels table = make_table("avx2");
    return &table;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace vivace

#endif
