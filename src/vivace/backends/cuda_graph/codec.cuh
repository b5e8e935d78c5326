// Numbers and operands that the kernels of the codec's layers for Hopper GPUs share. Follows wgmma.cuh.

constexpr float TO_INTEGER = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer

// -- numbers -----------------------------------------------------------------------------------------

DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE float2 unpack(u32 both) {
    float2 value;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(value.x), "=f"(value.y) : "r"(both));
    return value;
}

// `_snake` of codec_kernels.py, operation by operation.
DEVICE float snake(float x, float frequency, float inverse_gain) {
    float r = fmaf(x, frequency, __fsub_rn(TO_INTEGER, fmaf(x, frequency, TO_INTEGER)));
    float square = __fmul_rn(r, r);
    float p = fmaf(0.07722016f, square, -0.59804517f);
    p = fmaf(p, square, 2.5500314f);
    p = fmaf(p, square, -5.167707f);
    p = fmaf(p, square, 3.1415925f);
    float wave = __fmul_rn(p, r);
    return fmaf(inverse_gain, __fmul_rn(wave, wave), x);
}

// -- results ------------------------------------------------------------------------------------------

struct Columns {                            // of one layer's output
    const float *bias, *frequency, *inverse_gain;
};

struct Rows {
    const u16* residual;
    u16 *out, *active;                      // before and after the activation; `out` may be null
};

DEVICE void load8(float (&to)[8], const float* from) {
    float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

DEVICE uint4 pack8(const float (&y)[8]) {
    return make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
}

