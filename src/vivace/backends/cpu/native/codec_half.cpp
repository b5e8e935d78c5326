// The codec's kernels for ARM with half-precision arithmetic (ARMv8.2-A and later, Apple M1).
//
// Layers after the transformer round inputs and weights to float16. A sum runs in float16 for at
// most CHAIN products, then it is added to a sum in float32. The weights of an output are scaled by
// a power of two, so that a chain of inputs up to LARGEST_INPUT stays in range. All other layers are
// those of float32.
#include "codec_kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include <algorithm>

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "codec_kernels_impl.h"

namespace {

using vivace::codec::split_width;

using Half = float16x8_t;
constexpr int HALF_LANES = 8;
constexpr int HALF_VECTORS = 2;              // of a panel: with eight rows, they fill the registers
constexpr int64_t CHAIN = 128;               // products of a sum in float16
constexpr float LARGEST_HALF = 65504.0f;
constexpr float LARGEST_INPUT = 8188.0f;     // larger inputs are clamped
constexpr float LARGEST_GAIN = 8.0f;         // of a chain: the sum of its weights' magnitudes
static_assert(LARGEST_INPUT * LARGEST_GAIN <= LARGEST_HALF, "a chain overflows");

inline float16x4_t round_input(const float* from) {  // NaN and infinity stay as they are
    const float32x4_t x = vld1q_f32(from), limit = vdupq_n_f32(LARGEST_INPUT);
    const float32x4_t clamped = vminq_f32(vmaxq_f32(x, vnegq_f32(limit)), limit);
    return vcvt_f16_f32(vbslq_f32(vcageq_f32(x, vdupq_n_f32(INFINITY)), x, clamped));
}

void split_row(const float* x, int64_t num_in, int64_t row, int64_t, uint16_t* all) {
    uint16_t* out = all + row * split_width(num_in, 1);
    int64_t i = 0;
    for (; i + LANES <= num_in; i += LANES) vst1_u16(out + i, vreinterpret_u16_f16(round_input(x + i)));
    if (i < num_in) {
        float rest[LANES] = {};
        uint16_t rounded[LANES];
        std::copy(x + i, x + num_in, rest);
        vst1_u16(rounded, vreinterpret_u16_f16(round_input(rest)));
        std::copy_n(rounded, num_in - i, out + i);
    }
    std::fill(out + num_in, out + split_width(num_in, 1), uint16_t{0});
}

// Channels of a row that a product reads; those beyond the end are zero.
inline int64_t padded_depth(const Conv& conv) {
    return (conv.num_in + HALF_LANES - 1) / HALF_LANES * HALF_LANES;
}

// One float16 sum of `num_taps` * `depth` <= CHAIN products.
struct Chain {
    int64_t num_taps, tap_stride, depth, row_stride;
};

// Calls `visit(tap, channel, chain)` for all chains of a convolution, in order.
template <class Visit>
inline void for_chains(const Conv& conv, const Visit& visit) {
    const int64_t row_stride = split_width(conv.num_in, 1), depth = padded_depth(conv);
    const int64_t most_taps = std::max<int64_t>(1, CHAIN / depth);
    for (int64_t tap = 0; tap < conv.num_taps; tap += most_taps) {
        const int64_t num_taps = std::min(most_taps, conv.num_taps - tap);
        for (int64_t at = 0; at < depth; at += CHAIN)
            visit(tap, at, Chain{num_taps, conv.dilation * row_stride, std::min(CHAIN, depth - at),
                                 row_stride});
    }
}

// The power of two that brings the largest gain of one column's chains to LARGEST_GAIN or less.
float column_scale(const Conv& conv, const float* weight, int64_t width) {
    float largest = 0.0f;
    for_chains(conv, [&](int64_t tap, int64_t at, const Chain& chain) {
        float gain = 0.0f;
        for (int64_t t = tap; t < tap + chain.num_taps; ++t)
            for (int64_t i = at; i < std::min(at + chain.depth, conv.num_in); ++i)
                gain += std::fabs(weight[(t * conv.num_in + i) * width]);
        if (!(gain <= largest)) largest = gain;
    });
    int exponent = 0;
    if (!(largest > 0.0f && largest < INFINITY)) return 1.0f;  // also NaN
    std::frexp(largest / LARGEST_GAIN, &exponent);
    return std::ldexp(1.0f, exponent);
}

// Of each panel: [taps, padded depth, lanes of the panel].
void split_weight(Conv& conv) {
    const int64_t padded = padded_depth(conv);
    for (int64_t panel = 0; panel < conv.num_panels(); ++panel) {
        const int64_t first = conv.panel_starts[panel] * HALF_LANES;
        const int64_t width = conv.panel_starts[panel + 1] * HALF_LANES - first;
        for (int64_t lane = 0; lane < width; ++lane) {
            const float* from = conv.weight.data() + first * conv.num_taps * conv.num_in + lane;
            uint16_t* to = conv.split.data() + first * conv.num_taps * padded + lane;
            const float scale = column_scale(conv, from, width);
            conv.split_scale[first + lane] = scale;
            for (int64_t tap = 0; tap < conv.num_taps; ++tap, to += padded * width)
                for (int64_t i = 0; i < conv.num_in; ++i, from += width) {
                    const __fp16 rounded = static_cast<__fp16>(*from / scale);
                    std::memcpy(to + i * width, &rounded, sizeof rounded);
                }
        }
    }
}

// sum + weight * x[LANE]. For the intrinsic, GCC copies the lane to a vector first.
template <int LANE>
inline Half add_product(Half sum, Half weight, Half x) {
    asm volatile("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(sum) : "w"(weight), "x"(x), "i"(LANE));
    return sum;
}

// Adds the products of channel LANE of a vector of inputs.
template <int LANE, int ROWS, int VECTORS>
inline void add_channel(const Half (&x)[ROWS], const __fp16* weight, Half (&sum)[ROWS][VECTORS]) {
    for (int v = 0; v < VECTORS; ++v) {
        const Half columns = vld1q_f16(weight + (LANE * VECTORS + v) * HALF_LANES);
        for (int row = 0; row < ROWS; ++row)
            sum[row][v] = add_product<LANE>(sum[row][v], columns, x[row]);
    }
}

// sums [ROWS, VECTORS * 8] += scale * (x [taps, ROWS, depth] * weight [taps, depth, VECTORS * 8]).
template <int ROWS, int VECTORS>
inline void multiply_chain(const Chain& chain, const __fp16* x, const __fp16* weight,
                           const float* scale, float* sums) {
    Half sum[ROWS][VECTORS] = {};
    for (int64_t tap = 0; tap < chain.num_taps; ++tap, x += chain.tap_stride)
        for (int64_t i = 0; i < chain.depth; i += HALF_LANES) {
            Half each[ROWS];
            for (int row = 0; row < ROWS; ++row) each[row] = vld1q_f16(x + row * chain.row_stride + i);
            add_channel<0>(each, weight, sum);
            add_channel<1>(each, weight, sum);
            add_channel<2>(each, weight, sum);
            add_channel<3>(each, weight, sum);
            add_channel<4>(each, weight, sum);
            add_channel<5>(each, weight, sum);
            add_channel<6>(each, weight, sum);
            add_channel<7>(each, weight, sum);
            weight += HALF_LANES * VECTORS * HALF_LANES;
        }
    for (int v = 0; v < VECTORS; ++v) {
        const float32x4_t low = vld1q_f32(scale + v * HALF_LANES);
        const float32x4_t high = vld1q_f32(scale + v * HALF_LANES + 4);
        for (int row = 0; row < ROWS; ++row) {
            float* to = sums + (row * VECTORS + v) * HALF_LANES;
            vst1q_f32(to, vfmaq_f32(vld1q_f32(to), vcvt_f32_f16(vget_low_f16(sum[row][v])), low));
            vst1q_f32(to + 4,
                      vfmaq_f32(vld1q_f32(to + 4), vcvt_high_f32_f16(sum[row][v]), high));
        }
    }
}

template <int ROWS, int VECTORS>
inline void multiply_half_rows(const Chain& chain, const __fp16* x, const __fp16* weight,
                               const float* scale, int64_t num_rows, float* sums) {
    int64_t row = 0;
    for (; row + ROWS <= num_rows; row += ROWS)
        multiply_chain<ROWS, VECTORS>(chain, x + row * chain.row_stride, weight, scale,
                                      sums + row * VECTORS * HALF_LANES);
    if constexpr (ROWS > 1)
        if (row < num_rows)
            multiply_half_rows<ROWS / 2, VECTORS>(chain, x + row * chain.row_stride, weight, scale,
                                                  num_rows - row,
                                                  sums + row * VECTORS * HALF_LANES);
}

template <int VECTORS>
void convolve_half_panel(const Conv& conv, const __fp16* x, int64_t begin, int64_t end,
                         int64_t panel, const Epilogue& epilogue, float* sums) {
    constexpr int64_t width = VECTORS * HALF_LANES;
    const int64_t first = conv.panel_starts[panel] * HALF_LANES;
    const __fp16* weight = reinterpret_cast<const __fp16*>(conv.split.data()) +
                           first * conv.num_taps * padded_depth(conv);
    std::fill_n(sums, (end - begin) * width, 0.0f);
    for_chains(conv, [&](int64_t tap, int64_t at, const Chain& chain) {
        const __fp16* rows = x + (begin + tap * conv.dilation) * chain.row_stride + at;
        multiply_half_rows<TILE_ROWS, VECTORS>(chain, rows, weight, conv.split_scale.data() + first,
                                               end - begin, sums);
        weight += chain.num_taps * chain.depth * width;
    });
    finish<width / LANES>(conv, epilogue, begin, end, first, sums, width);
}

void convolve_half(const Conv& conv, const Rows& rows, int64_t begin, int64_t end, int64_t panel,
                   const Epilogue& epilogue, float* sums) {
    const __fp16* x = reinterpret_cast<const __fp16*>(rows.split);
    if (conv.panel_starts[panel + 1] - conv.panel_starts[panel] == 1)
        return convolve_half_panel<1>(conv, x, begin, end, panel, epilogue, sums);
    convolve_half_panel<HALF_VECTORS>(conv, x, begin, end, panel, epilogue, sums);
}

bool has_half_arithmetic() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDHP;
#else
    return true;  // every Mac with an ARM processor
#endif
}

constexpr Kernels make_half_kernels() {
    Kernels kernels = make_kernels("half");
    kernels.split = {1, HALF_LANES, HALF_VECTORS, false, split_row, split_weight, convolve_half};
    return kernels;
}

}  // namespace
#endif

namespace vivace::codec {

const Kernels* kernels_half() {
#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    static constexpr Kernels kernels = make_half_kernels();
    static const bool is_available = has_half_arithmetic();
    if (is_available) return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
