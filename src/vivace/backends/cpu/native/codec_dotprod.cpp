// The codec's kernels for ARM with int8 dot products and half-precision arithmetic.
//
// Convolutions of seven taps, which are most of the work, round inputs and weights to int8. An input
// row has one scale, and so have the weights of an output. Sums of one tap are whole numbers. The
// taps are added in float32. All other layers are those of "half".
#include "codec_kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <algorithm>

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "codec_kernels_impl.h"

namespace {

using vivace::codec::Buffer;

constexpr int64_t DEPTH = 16;       // channels of a vector of inputs
constexpr int COLUMNS = LANES;      // of a vector of weights: four channels of each
constexpr int TILE_VECTORS = 2;     // of a tile: with eight rows, they fill the registers
constexpr int TILE_COLUMNS = TILE_VECTORS * COLUMNS;
constexpr int PANEL_VECTORS = 4;    // of a panel: a cache line of float32
constexpr float LARGEST = 127.0f;

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Bytes of a row: its channels, padded with zeros, then its scale.
int64_t row_bytes(int64_t num_in) { return round_up(num_in, DEPTH) + DEPTH; }

// The scale of numbers up to `peak`. NaN and infinity stay: they make all sums non-finite.
float find_scale(float peak) { return peak / LARGEST; }

float invert(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

inline int8x16_t round_inputs(const float* x, float factor) {
    int16x4_t rounded[4];
    UNROLL for (int i = 0; i < 4; ++i)
        rounded[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i * LANES), factor)));
    return vcombine_s8(vqmovn_s16(vcombine_s16(rounded[0], rounded[1])),
                       vqmovn_s16(vcombine_s16(rounded[2], rounded[3])));
}

void split_row(const float* x, int64_t num_in, int64_t row, int64_t, uint16_t* all) {
    int8_t* out = reinterpret_cast<int8_t*>(all) + row * row_bytes(num_in);
    const int64_t whole = num_in / DEPTH * DEPTH;
    float rest[DEPTH] = {};
    std::copy(x + whole, x + num_in, rest);
    float32x4_t peaks[4];
    for (int i = 0; i < 4; ++i) peaks[i] = vabsq_f32(vld1q_f32(rest + i * LANES));
    for (int64_t at = 0; at < whole; at += DEPTH)
        UNROLL for (int i = 0; i < 4; ++i)
            peaks[i] = vmaxq_f32(peaks[i], vabsq_f32(vld1q_f32(x + at + i * LANES)));
    const float scale = find_scale(vmaxvq_f32(
        vmaxq_f32(vmaxq_f32(peaks[0], peaks[1]), vmaxq_f32(peaks[2], peaks[3]))));
    const float factor = invert(scale);
    int64_t at = 0;
    for (; at < whole; at += DEPTH) vst1q_s8(out + at, round_inputs(x + at, factor));
    if (at < num_in) vst1q_s8(out + at, round_inputs(rest, factor));
    std::memcpy(out + row_bytes(num_in) - DEPTH, &scale, sizeof scale);
}

// Of each panel, tap and tile: [channels / 4, columns of the tile, 4 channels].
void split_weight(Conv& conv) {
    const int64_t depth = round_up(conv.num_in, DEPTH);
    const int64_t num_bytes = static_cast<int64_t>(conv.bias.size()) * conv.num_taps * depth;
    Buffer<uint16_t>(num_bytes / 2).swap(conv.split);
    for (int64_t panel = 0; panel < conv.num_panels(); ++panel) {
        const int64_t first = conv.panel_starts[panel] * COLUMNS;
        const int64_t width = conv.panel_starts[panel + 1] * COLUMNS - first;
        const float* from = conv.weight.data() + first * conv.num_taps * conv.num_in;
        int8_t* to = reinterpret_cast<int8_t*>(conv.split.data()) + first * conv.num_taps * depth;
        for (int64_t column = 0; column < width; ++column) {
            float peak = 0.0f;
            for (int64_t i = 0; i < conv.num_taps * conv.num_in; ++i) {
                const float size = std::fabs(from[i * width + column]);
                if (!(size <= peak)) peak = size;
            }
            const float scale = find_scale(peak), factor = invert(scale);
            conv.split_scale[first + column] = scale;
            const int64_t tile = column / TILE_COLUMNS * TILE_COLUMNS;
            const int64_t tile_width = std::min<int64_t>(TILE_COLUMNS, width - tile);
            for (int64_t tap = 0; tap < conv.num_taps; ++tap) {
                int8_t* tile_weight = to + (tap * width + tile) * depth + (column - tile) * 4;
                for (int64_t i = 0; i < conv.num_in; ++i) {
                    const float x = from[(tap * conv.num_in + i) * width + column] * factor;
                    tile_weight[i / 4 * 4 * tile_width + i % 4] =
                        static_cast<int8_t>(std::isfinite(x) ? std::nearbyint(x) : 0.0f);
                }
            }
        }
    }
}

// The inputs and weights of one tap, and the sums of a tile.
struct Tap {
    int64_t depth, row_bytes, sums_stride;
    const float* column_scale;  // of the panel; null before the last tap
    bool is_first;
};

// sums + weights * x[LANE]. GCC puts calls of the intrinsic that wait for each other side by side.
template <int LANE>
inline int32x4_t add_products(int32x4_t sums, int8x16_t weights, int8x16_t x) {
    asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sums) : "w"(weights), "w"(x), "i"(LANE));
    return sums;
}

// Adds the products of channels 4 * PART to 4 * PART + 3 of a vector of inputs.
template <int PART, int ROWS, int VECTORS>
inline void add_channels(const int8x16_t (&x)[ROWS], const int8_t* weight,
                         int32x4_t (&sum)[ROWS][VECTORS]) {
    UNROLL for (int v = 0; v < VECTORS; ++v) {
        const int8x16_t columns = vld1q_s8(weight + (PART * VECTORS + v) * DEPTH);
        UNROLL for (int row = 0; row < ROWS; ++row)
            sum[row][v] = add_products<PART>(sum[row][v], columns, x[row]);
    }
}

// sums [ROWS, VECTORS * 4] += row scales * (x [ROWS, depth] * weight [depth, VECTORS * 4]).
template <int ROWS, int VECTORS>
inline void multiply_tap(const Tap& tap, const int8_t* x, const int8_t* weight, int64_t column,
                         float* sums) {
    int32x4_t sum[ROWS][VECTORS] = {};
    for (int64_t i = 0; i < tap.depth; i += DEPTH, weight += 4 * VECTORS * DEPTH) {
        int8x16_t each[ROWS];
        UNROLL for (int row = 0; row < ROWS; ++row) each[row] = vld1q_s8(x + row * tap.row_bytes + i);
        add_channels<0>(each, weight, sum);
        add_channels<1>(each, weight, sum);
        add_channels<2>(each, weight, sum);
        add_channels<3>(each, weight, sum);
    }
    UNROLL for (int row = 0; row < ROWS; ++row) {
        float scale;
        std::memcpy(&scale, x + row * tap.row_bytes + tap.depth, sizeof scale);
        UNROLL for (int v = 0; v < VECTORS; ++v) {
            float* to = sums + row * tap.sums_stride + v * LANES;
            const float32x4_t before = tap.is_first ? vdupq_n_f32(0.0f) : vld1q_f32(to);
            float32x4_t total = vfmaq_n_f32(before, vcvtq_f32_s32(sum[row][v]), scale);
            if (tap.column_scale)
                total = vmulq_f32(total, vld1q_f32(tap.column_scale + column + v * LANES));
            vst1q_f32(to, total);
        }
    }
}

template <int ROWS, int VECTORS>
inline void multiply_tap_rows(const Tap& tap, const int8_t* x, const int8_t* weight, int64_t column,
                              int64_t num_rows, float* sums) {
    int64_t row = 0;
    for (; row + ROWS <= num_rows; row += ROWS)
        multiply_tap<ROWS, VECTORS>(tap, x + row * tap.row_bytes, weight, column,
                                    sums + row * tap.sums_stride);
    if constexpr (ROWS > 1)
        if (row < num_rows)
            multiply_tap_rows<ROWS / 2, VECTORS>(tap, x + row * tap.row_bytes, weight, column,
                                                 num_rows - row, sums + row * tap.sums_stride);
}

void convolve_int8(const Conv& conv, const Rows& rows, int64_t begin, int64_t end, int64_t panel,
                   const Epilogue& epilogue, float* sums) {
    const int64_t first = conv.panel_starts[panel] * COLUMNS;
    const int64_t width = conv.panel_starts[panel + 1] * COLUMNS - first;
    Tap tap{round_up(conv.num_in, DEPTH), row_bytes(conv.num_in), width, nullptr, true};
    const int8_t* x = reinterpret_cast<const int8_t*>(rows.split) + begin * tap.row_bytes;
    const int8_t* weight =
        reinterpret_cast<const int8_t*>(conv.split.data()) + first * conv.num_taps * tap.depth;
    for (int64_t i = 0; i < conv.num_taps; ++i) {
        if (i + 1 == conv.num_taps) tap.column_scale = conv.split_scale.data() + first;
        int64_t column = 0;
        for (; column + TILE_COLUMNS <= width; column += TILE_COLUMNS)
            multiply_tap_rows<TILE_ROWS, TILE_VECTORS>(tap, x, weight + column * tap.depth, column,
                                                       end - begin, sums + column);
        if (column < width)
            multiply_tap_rows<TILE_ROWS, 1>(tap, x, weight + column * tap.depth, column,
                                            end - begin, sums + column);
        x += conv.dilation * tap.row_bytes;
        weight += tap.depth * width;
        tap.is_first = false;
    }
    if (width == PANEL_VECTORS * COLUMNS)
        return finish<PANEL_VECTORS>(conv, epilogue, begin, end, first, sums, width);
    for (int64_t column = 0; column < width; column += LANES)
        finish<1>(conv, epilogue, begin, end, first + column, sums + column, width);
}

bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;  // every Mac with an ARM processor
#endif
}

Kernels make_int8_kernels(const Kernels& half) {
    Kernels kernels = make_kernels("int8");
    kernels.split = half.split;
    kernels.coarse = {1, COLUMNS, PANEL_VECTORS, false, split_row, split_weight, convolve_int8};
    return kernels;
}

}  // namespace
#endif

namespace vivace::codec {

const Kernels* kernels_int8() {
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
    static const Kernels* const half = has_dot_products() ? kernels_half() : nullptr;
    if (half) {
        static const Kernels kernels = make_int8_kernels(*half);
        return &kernels;
    }
#endif
    return nullptr;
}

}  // namespace vivace::codec
