// The codec's kernels for AMX: matrix products of bfloat16 numbers, summed in float32.
//
// "amx" splits a float32 number into the sum of two bfloat16 numbers, high and low. Three of their
// four products give nearly the precision of float32: 90 dB on the embedded voice. "bf16" has the
// high numbers only: a third of the products, half of the memory, and 32 dB.
#include "codec_kernels.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#include <immintrin.h>

#include "amx.h"
#include "codec_kernels_impl.h"

namespace {

using vivace::codec::SPLIT_DEPTH;

constexpr int64_t TILE_SIDE = 16;                           // rows, and columns of float32
constexpr int64_t TILE_SIZE = TILE_SIDE * SPLIT_DEPTH;      // bfloat16 numbers
constexpr int64_t TILE_VECTORS = TILE_SIDE / LANES;         // of a row of a tile
constexpr int64_t MAX_TILES = 2;                            // of a panel, side by side
constexpr int64_t SUMS_STRIDE = MAX_TILES * TILE_SIDE;      // of the rows of `sums`

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Rounds to the nearest number, to even in a tie. NaN stays NaN.
inline uint16_t to_bfloat16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
}

inline float to_float(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

#if defined(__AVX512BF16__)
inline __m512i to_bfloat16(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

inline __m512 subtract_rounded(__m512 x, __m256i rounded) {
    return x - (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
}
#endif

// Rounds the channels of one depth; with `low`, also what the rounding left.
inline void split_depth(const float* x, uint16_t* high, uint16_t* low) {
#if defined(__AVX512BF16__)
    const __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + 16);
    const __m512i rounded = to_bfloat16(first, second);
    _mm512_store_si512(high, rounded);
    if (low)
        _mm512_store_si512(low, to_bfloat16(
            subtract_rounded(first, _mm512_castsi512_si256(rounded)),
            subtract_rounded(second, _mm512_extracti64x4_epi64(rounded, 1))));
#else
    for (int64_t i = 0; i < SPLIT_DEPTH; ++i) {
        high[i] = to_bfloat16(x[i]);
        if (low) low[i] = to_bfloat16(x[i] - to_float(high[i]));
    }
#endif
}

// [parts, depths, rows, 32 channels], padded with zeros: a tile is contiguous at every dilation.
template <int PARTS>
void split_row(const float* x, int64_t num_in, int64_t row, int64_t num_rows, uint16_t* out) {
    const int64_t num_depths = round_up(num_in, SPLIT_DEPTH) / SPLIT_DEPTH;
    for (int64_t depth = 0; depth < num_depths; ++depth) {
        uint16_t* high = out + (depth * num_rows + row) * SPLIT_DEPTH;
        uint16_t* low = PARTS > 1 ? high + num_depths * num_rows * SPLIT_DEPTH : nullptr;
        const int64_t count = num_in - depth * SPLIT_DEPTH;
        if (count >= SPLIT_DEPTH) {
            split_depth(x + depth * SPLIT_DEPTH, high, low);
            continue;
        }
        float rest[SPLIT_DEPTH] = {};
        std::copy_n(x + depth * SPLIT_DEPTH, count, rest);
        split_depth(rest, high, low);
    }
}

// Per panel, tap and depth of 32 channels: the high tiles of the panel, then the low tiles.
// A tile is [16 pairs of channels, 16 columns, 2 channels].
template <int PARTS>
void split_weight(Conv& conv) {
    const int64_t num_depths = round_up(conv.num_in, SPLIT_DEPTH) / SPLIT_DEPTH;
    uint16_t* to = conv.split.data();
    const float* panel_weight = conv.weight.data();
    for (int64_t panel = 0; panel < conv.num_panels(); ++panel) {
        const int64_t num_tiles = conv.panel_starts[panel + 1] - conv.panel_starts[panel];
        const int64_t width = num_tiles * TILE_SIDE;
        for (int64_t tap = 0; tap < conv.num_taps; ++tap)
            for (int64_t depth = 0; depth < num_depths; ++depth, to += PARTS * num_tiles * TILE_SIZE)
                for (int64_t i = 0; i < SPLIT_DEPTH; ++i) {
                    const int64_t in = depth * SPLIT_DEPTH + i;
                    if (in >= conv.num_in) break;
                    const float* row = panel_weight + (tap * conv.num_in + in) * width;
                    for (int64_t column = 0; column < width; ++column) {
                        uint16_t* tile = to + column / TILE_SIDE * TILE_SIZE;
                        const int64_t at = (i / 2 * TILE_SIDE + column % TILE_SIDE) * 2 + i % 2;
                        const uint16_t high = to_bfloat16(row[column]);
                        tile[at] = high;
                        if (PARTS > 1)
                            tile[num_tiles * TILE_SIZE + at] =
                                to_bfloat16(row[column] - to_float(high));
                    }
                }
        panel_weight += conv.num_taps * conv.num_in * width;
    }
}

constexpr vivace::TileConfig TILE_CONFIG;  // in memory: the compiler cannot see what the instruction reads

// Tiles 0 to 3 are sums: row tile, column tile. Tiles 4 and 5 are rows, 6 and 7 weights.
template <int ROW_TILES>
inline void load_rows(const uint16_t* x) {
    _tile_loadd(4, x, 64);
    if constexpr (ROW_TILES > 1) _tile_loadd(5, x + TILE_SIZE, 64);
}

template <int COLUMN_TILES>
inline void load_weights(const uint16_t* tiles) {
    _tile_loadd(6, tiles, 64);
    if constexpr (COLUMN_TILES > 1) _tile_loadd(7, tiles + TILE_SIZE, 64);
}

template <int ROW_TILES, int COLUMN_TILES>
inline void multiply_tiles() {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (COLUMN_TILES > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (ROW_TILES > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (ROW_TILES > 1 && COLUMN_TILES > 1) _tile_dpbf16ps(3, 5, 7);
}

// Sums of 16 or 32 rows from `row` on, and of one panel.
template <int PARTS, int ROW_TILES, int COLUMN_TILES>
void sum_tiles(const Conv& conv, const Rows& rows, int64_t row, const uint16_t* weight,
               float* sums) {
    const int64_t num_depths = round_up(conv.num_in, SPLIT_DEPTH) / SPLIT_DEPTH;
    const int64_t stride = rows.count * SPLIT_DEPTH;  // of a depth
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t tap = 0; tap < conv.num_taps; ++tap) {
        const uint16_t* high = rows.split + (row + tap * conv.dilation) * SPLIT_DEPTH;
        for (int64_t depth = 0; depth < num_depths; ++depth, high += stride) {
            load_rows<ROW_TILES>(high);
            if constexpr (PARTS > 1) {
                load_weights<COLUMN_TILES>(weight + COLUMN_TILES * TILE_SIZE);
                multiply_tiles<ROW_TILES, COLUMN_TILES>();  // high rows, low weights
            }
            load_weights<COLUMN_TILES>(weight);
            multiply_tiles<ROW_TILES, COLUMN_TILES>();  // high, high
            if constexpr (PARTS > 1) {
                load_rows<ROW_TILES>(high + num_depths * stride);
                multiply_tiles<ROW_TILES, COLUMN_TILES>();  // low rows, high weights
            }
            weight += PARTS * COLUMN_TILES * TILE_SIZE;
        }
    }
    constexpr int64_t bytes = SUMS_STRIDE * sizeof(float);
    _tile_stored(0, sums, bytes);
    if constexpr (COLUMN_TILES > 1) _tile_stored(1, sums + TILE_SIDE, bytes);
    if constexpr (ROW_TILES > 1) _tile_stored(2, sums + TILE_SIDE * SUMS_STRIDE, bytes);
    if constexpr (ROW_TILES > 1 && COLUMN_TILES > 1)
        _tile_stored(3, sums + TILE_SIDE * SUMS_STRIDE + TILE_SIDE, bytes);
}

template <int PARTS, int COLUMN_TILES>
void sum_panel(const Conv& conv, const Rows& rows, int64_t begin, int64_t end,
               const uint16_t* weight, float* sums) {
    for (int64_t row = begin; row < end; row += 2 * TILE_SIDE) {
        float* to = sums + (row - begin) * SUMS_STRIDE;
        if (end - row > TILE_SIDE)
            sum_tiles<PARTS, 2, COLUMN_TILES>(conv, rows, row, weight, to);
        else
            sum_tiles<PARTS, 1, COLUMN_TILES>(conv, rows, row, weight, to);
    }
}

template <int PARTS>
void convolve_split(const Conv& conv, const Rows& rows, int64_t begin, int64_t end, int64_t panel,
                    const Epilogue& epilogue, float* sums) {
    const int64_t first = conv.panel_starts[panel], num_tiles = conv.panel_starts[panel + 1] - first;
    const int64_t depth = conv.num_taps * round_up(conv.num_in, SPLIT_DEPTH);
    const uint16_t* weight = conv.split.data() + PARTS * first * TILE_SIDE * depth;
    if (num_tiles > 1)
        sum_panel<PARTS, 2>(conv, rows, begin, end, weight, sums);
    else
        sum_panel<PARTS, 1>(conv, rows, begin, end, weight, sums);
    for (int64_t v = 0; v < num_tiles * TILE_VECTORS; ++v)
        finish<1>(conv, epilogue, begin, end, first * TILE_SIDE + v * LANES, sums + v * LANES,
                  SUMS_STRIDE);
}

void begin_tiles() { _tile_loadconfig(&TILE_CONFIG); }
void end_tiles() { _tile_release(); }

// AVX512-BF16 rounds the inputs.
bool has_vector_bfloat16() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5) != 0;
}

template <int PARTS>
constexpr Kernels make_tile_kernels(const char* name) {
    Kernels kernels = make_kernels(name);
    kernels.split = {PARTS,       TILE_SIDE,   MAX_TILES, true, split_row<PARTS>, split_weight<PARTS>,
                     convolve_split<PARTS>, begin_tiles, end_tiles};
    return kernels;
}

const Kernels* if_available(const Kernels& kernels) {
    static const bool is_available = vivace::codec::kernels_avx512() != nullptr &&
                                     has_vector_bfloat16() && vivace::has_tiles(vivace::AMX_BF16);
    return is_available ? &kernels : nullptr;
}

}  // namespace
#endif

namespace vivace::codec {

const Kernels* kernels_amx() {
#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
    static constexpr Kernels kernels = make_tile_kernels<2>("amx");
    return if_available(kernels);
#else
    return nullptr;
#endif
}

const Kernels* kernels_bf16() {
#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
    static constexpr Kernels kernels = make_tile_kernels<1>("bf16");
    return if_available(kernels);
#else
    return nullptr;
#endif
}

}  // namespace vivace::codec
