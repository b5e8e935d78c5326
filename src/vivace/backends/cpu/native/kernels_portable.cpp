// Plain C++ for any machine; the compiler vectorizes some of it.
#include "kernels.h"

namespace vivace {
namespace {

constexpr int W = 4, MAX_TILE = 1, INTEGER_TILE = 1, NUM_STREAMS = 1, ONE_ROW_TILE = 4;
constexpr bool READS_AHEAD = false;

struct V {
    float v[W];
};

#define EACH(expression)                                  \
    V out;                                                \
    for (int i = 0; i < W; ++i) out.v[i] = (expression);  \
    return out

inline V load(const float* p) { EACH(p[i]); }
inline V load_bf16(const uint16_t* p) { EACH(from_bf16(p[i])); }
inline V load_half(const uint16_t* p) { EACH(from_half(p[i])); }
inline V splat(float x) { EACH(x); }
inline V add(V a, V b) { EACH(a.v[i] + b.v[i]); }
inline V mul(V a, V b) { EACH(a.v[i] * b.v[i]); }
inline V div(V a, V b) { EACH(a.v[i] / b.v[i]); }
inline V fma(V a, V b, V c) { EACH(a.v[i] * b.v[i] + c.v[i]); }
inline V vmin(V a, V b) { EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline V vmax(V a, V b) { EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline V vabs(V a) { EACH(__builtin_fabsf(a.v[i])); }
inline V nearest(V a) { EACH(__builtin_rintf(a.v[i])); }
inline V power_of_two(V a) { EACH(bits_to_float(uint32_t(int32_t(a.v[i]) + 127) << 23)); }
inline void store(float* p, V a) { memcpy(p, a.v, sizeof a.v); }
inline void store_half(uint16_t* p, V a) {
    for (int i = 0; i < W; ++i) p[i] = to_half(a.v[i]);
}
inline float sum(V a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
inline float maximum(V a) {
    float top = a.v[0];
    for (int i = 1; i < W; ++i) top = a.v[i] > top ? a.v[i] : top;
    return top;
}
inline void store_codes(int8_t* p, V a) {
    for (int i = 0; i < W; ++i) p[i] = int8_t(a.v[i]);
}

inline void arrange(int kind, const int8_t* plain, int g, int, int size, int8_t* codes,
                    int32_t* start) {
    memcpy(codes + g * GROUP, plain, size_t(size));
    if (kind == INT4) start_int4(plain, start + g * MAX_LANES);
}

template <int OUT, int ROWS>
inline void dot_int8(const int8_t* w, const int8_t* x, const float* x_scale, const int32_t*,
                     size_t in, float (&out)[OUT][ROWS]) {
    const size_t groups = size_t(num_groups(int(in)));
    for (int o = 0; o < OUT; ++o)
        for (int r = 0; r < ROWS; ++r) {
            float total = 0.0f;
            for (size_t g = 0; g < groups; ++g) {
                const size_t end = in - g * GROUP < GROUP ? in : (g + 1) * GROUP;
                int32_t part = 0;
                for (size_t i = g * GROUP; i < end; ++i)
                    part += int32_t(w[size_t(o) * in + i]) * x[size_t(r) * in + i];
                total += float(part) * x_scale[size_t(r) * groups + g];
            }
            out[o][r] = total;
        }
}

template <int OUT, int ROWS>
inline void dot_int4(const uint8_t* w, const uint16_t* w_scale, const int8_t* x,
                     const float* x_scale, const int32_t* start, size_t groups,
                     float (&out)[OUT][ROWS]) {
    for (int o = 0; o < OUT; ++o)
        for (int r = 0; r < ROWS; ++r) {
            float total = 0.0f;
            for (size_t g = 0; g < groups; ++g) {
                const uint8_t* packed = w + (size_t(o) * groups + g) * (GROUP / 2);
                const size_t at = size_t(r) * groups + g;
                const int32_t* first = start + at * MAX_LANES;
                int32_t part = first[0] + first[1] + first[2] + first[3];
                for (int i = 0; i < GROUP / 2; ++i)
                    part += (packed[i] & 15) * x[at * GROUP + i] +
                            (packed[i] >> 4) * x[at * GROUP + GROUP / 2 + i];
                const float scale = from_half(w_scale[size_t(o) * groups + g]);
                total += float(part) * (x_scale[at] * scale);
            }
            out[o][r] = total;
        }
}

#include "kernels_impl.h"

}  // namespace

const Kernels* portable_kernels() {
    static const Kernels table = make_table("portable");
    return &table;
}

}  // namespace vivace
