// NEON vectors; included by the files of ARM instruction sets.
#include <arm_neon.h>

constexpr int W = 4, MAX_TILE = 4, ONE_ROW_TILE = 8;
constexpr bool READS_AHEAD = false;

using V = float32x4_t;

inline V load(const float* p) { return vld1q_f32(p); }
inline V load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
inline V load_half(const uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
inline V splat(float x) { return vdupq_n_f32(x); }
inline V add(V a, V b) { return vaddq_f32(a, b); }
inline V mul(V a, V b) { return vmulq_f32(a, b); }
inline V div(V a, V b) { return vdivq_f32(a, b); }
inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V vmin(V a, V b) { return vminq_f32(a, b); }
inline V vmax(V a, V b) { return vmaxq_f32(a, b); }
inline V vabs(V a) { return vabsq_f32(a); }
inline V nearest(V a) { return vrndnq_f32(a); }
inline V power_of_two(V a) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127)), 23));
}
inline void store(float* p, V a) { vst1q_f32(p, a); }
inline void store_half(uint16_t* p, V a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
inline float sum(V a) { return vaddvq_f32(a); }
inline float maximum(V a) { return vmaxvq_f32(a); }
inline void store_codes(int8_t* p, V a) {
    const int16x4_t half = vmovn_s32(vcvtq_s32_f32(a));
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(half, half))), 0);
    memcpy(p, &four, 4);
}
