// Vectors of float32 of the instruction set that the including file is compiled for.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t IntVector __attribute__((vector_size(LANES * sizeof(float))));

inline Vector splat(float x) { return x - Vector{}; }

inline Vector load(const float* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// Float16 numbers.
#if defined(__AVX512F__) || defined(__F16C__) || defined(__aarch64__)
constexpr bool CAN_LOAD_HALF = true;
#else
constexpr bool CAN_LOAD_HALF = false;
#endif

inline Vector load(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
    return (Vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    Vector x;
    for (int i = 0; i < LANES; ++i) x[i] = vivace::from_half(from[i]);
    return x;
#endif
}

inline void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }

// Rounded to float16.
inline void store(uint16_t* to, Vector x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)x, 0));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)x, 0));
#elif defined(__aarch64__)
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
    for (int i = 0; i < LANES; ++i) to[i] = vivace::to_half(x[i]);
#endif
}

inline bool is_equal(Vector x, Vector y) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_EQ_OQ) == 0xffff;
#else
    const IntVector same = x == y;
    bool all = true;
    for (int i = 0; i < LANES; ++i) all = all && same[i];
    return all;
#endif
}

// a * b + c with one rounding where the instruction set has it.
inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// The same with a number for all lanes.
inline Vector fma(float a, Vector b, Vector c) {
#if defined(__aarch64__)
    return (Vector)vfmaq_n_f32((float32x4_t)c, (float32x4_t)b, a);
#else
    return fma(splat(a), b, c);
#endif
}

// The first `count` lanes; the others are zero.
inline Vector load(const float* from, int64_t count) {
    if (count >= LANES) return load(from);
#if defined(__AVX512F__)
    return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#else
    Vector x{};
    for (int64_t i = 0; i < count; ++i) x[i] = from[i];
    return x;
#endif
}

inline void store(float* to, Vector x, int64_t count) {
    if (count >= LANES) return store(to, x);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)x);
#else
    for (int64_t i = 0; i < count; ++i) to[i] = x[i];
#endif
}

inline float sum(Vector x) {
    float parts[LANES];
    store(parts, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
    return parts[0];
}

// NaN stays NaN: x86 returns the second number if one is not a number.
inline Vector clamp(Vector x, float low, float high) {
#if defined(__AVX512F__)
    return (Vector)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vector)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)x));
#elif defined(__aarch64__)
    return (Vector)vminq_f32(vmaxq_f32((float32x4_t)x, vdupq_n_f32(low)), vdupq_n_f32(high));
#else
    x = x < splat(low) ? splat(low) : x;
    return x > splat(high) ? splat(high) : x;
#endif
}

constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number

// sin^2(x), which has the period pi. The error is below 1e-6 for |x| < 1e5.
inline Vector sine_squared(Vector x) {
    const Vector turns = fma(x, splat(0.318309886f), splat(ROUNDING)) - ROUNDING;
    Vector r = fma(turns, splat(-3.14159274f), x);
    r = fma(turns, splat(8.74227766e-8f), r);
    r = clamp(r, -1.6f, 1.6f);  // a phase of more than 2^22 turns has no meaning
    const Vector square = r * r;
    Vector sine = fma(square, splat(2.59927819e-6f), splat(-1.98062020e-4f));
    sine = fma(square, sine, splat(8.33301033e-3f));
    sine = fma(square, sine, splat(-1.66666567e-1f));
    sine = fma(square * r, sine, r);
    return sine * sine;
}

// e^x with a relative error below 2e-7; 0 < e^x < infinity.
inline Vector exponential(Vector x) {
    x = clamp(x, -87.0f, 88.0f);
    const Vector shifted = fma(x, splat(1.44269504f), splat(ROUNDING));
    const Vector power = shifted - ROUNDING;
    Vector r = fma(power, splat(-0.693145752f), x);
    r = fma(power, splat(-1.42860677e-6f), r);
    Vector value = fma(r, splat(1.3888889e-3f), splat(8.3333333e-3f));
    value = fma(r, value, splat(4.1666667e-2f));
    value = fma(r, value, splat(1.6666667e-1f));
    value = fma(r, value, splat(0.5f));
    value = fma(r * r, value, r) + 1.0f;
    IntVector bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000;
    Vector scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return value * scale;
}

// x * (1 + erf(x / sqrt 2)) / 2, by formula 7.1.26 of Abramowitz and Stegun (error below 2e-7).
inline Vector gelu(Vector x) {
    const Vector z = x * 0.707106781f;
    const Vector size = z < splat(0.0f) ? -z : z;
    const Vector t = 1.0f / fma(size, splat(0.3275911f), splat(1.0f));
    Vector tail = fma(t, splat(1.061405429f), splat(-1.453152027f));
    tail = fma(t, tail, splat(1.421413741f));
    tail = fma(t, tail, splat(-0.284496736f));
    tail = fma(t, tail, splat(0.254829592f));
    tail = tail * t * exponential(-size * size);
    return x * 0.5f * (z < splat(0.0f) ? tail : 2.0f - tail);
}

}  // namespace
