// The codec's kernels for AMX: matrix products of bfloat16 numbers, summed in float32.
//
// A float32 number is split into the sum of two bfloat16 numbers, high and low. Three of their four
// products give nearly the precision of float32: 90 dB on the embedded voice, where plain bfloat16
// gives 32 dB.
#include "codec_kernels.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// All high parts of a row, then all low parts; padded with zeros.
void split_row(const float* x, int64_t num_in, uint16_t* out) {
    const int64_t width = round_up(num_in, SPLIT_DEPTH);
    for (int64_t i = 0; i < num_in; ++i) {
        const uint16_t high = to_bfloat16(x[i]);
        out[i] = high;
        out[width + i] = to_bfloat16(x[i] - to_float(high));
    }
    for (int64_t i = num_in; i < width; ++i) out[i] = out[width + i] = 0;
}

// Per panel, tap and depth of 32 channels: the high tiles of the panel, then the low tiles.
// A tile is [16 pairs of channels, 16 columns, 2 channels].
void split_weight(Conv& conv) {
    const int64_t num_depths = round_up(conv.num_in, SPLIT_DEPTH) / SPLIT_DEPTH;
    const int64_t num_columns = static_cast<int64_t>(conv.bias.size());
    conv.split.assign(2 * num_columns * conv.num_taps * num_depths * SPLIT_DEPTH, 0);
    uint16_t* to = conv.split.data();
    const float* panel_weight = conv.weight.data();
    for (int64_t panel = 0; panel < conv.num_panels(); ++panel) {
        const int64_t num_tiles = conv.panel_starts[panel + 1] - conv.panel_starts[panel];
        const int64_t width = num_tiles * TILE_SIDE;
        for (int64_t tap = 0; tap < conv.num_taps; ++tap)
            for (int64_t depth = 0; depth < num_depths; ++depth, to += 2 * num_tiles * TILE_SIZE)
                for (int64_t i = 0; i < SPLIT_DEPTH; ++i) {
                    const int64_t in = depth * SPLIT_DEPTH + i;
                    if (in >= conv.num_in) break;
                    const float* row = panel_weight + (tap * conv.num_in + in) * width;
                    for (int64_t column = 0; column < width; ++column) {
                        uint16_t* tile = to + column / TILE_SIDE * TILE_SIZE;
                        const int64_t at = (i / 2 * TILE_SIDE + column % TILE_SIDE) * 2 + i % 2;
                        const uint16_t high = to_bfloat16(row[column]);
                        tile[at] = high;
                        tile[num_tiles * TILE_SIZE + at] = to_bfloat16(row[column] - to_float(high));
                    }
                }
        panel_weight += conv.num_taps * conv.num_in * width;
    }
    conv.weight = {};
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig TILE_CONFIG;  // in memory: the compiler cannot see what the instruction reads
static_assert(sizeof TILE_CONFIG == 64, "the format of ldtilecfg");

// Tiles 0 to 3 are sums: row tile, column tile. Tiles 4 and 5 are rows, 6 and 7 weights.
template <int ROW_TILES>
inline void load_rows(const uint16_t* x, int64_t stride) {
    _tile_loadd(4, x, stride);
    if constexpr (ROW_TILES > 1) _tile_loadd(5, x + TILE_SIDE * stride / 2, stride);
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
template <int ROW_TILES, int COLUMN_TILES>
void sum_tiles(const Conv& conv, const uint16_t* x, int64_t row, const uint16_t* weight,
               float* sums) {
    const int64_t width = round_up(conv.num_in, SPLIT_DEPTH), stride = 2 * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t tap = 0; tap < conv.num_taps; ++tap) {
        const uint16_t* high = x + (row + tap * conv.dilation) * stride;
        for (int64_t depth = 0; depth < width; depth += SPLIT_DEPTH) {
            load_rows<ROW_TILES>(high + depth, 2 * stride);
            load_weights<COLUMN_TILES>(weight + COLUMN_TILES * TILE_SIZE);
            multiply_tiles<ROW_TILES, COLUMN_TILES>();  // high rows, low weights
            load_weights<COLUMN_TILES>(weight);
            multiply_tiles<ROW_TILES, COLUMN_TILES>();  // high, high
            load_rows<ROW_TILES>(high + width + depth, 2 * stride);
            multiply_tiles<ROW_TILES, COLUMN_TILES>();  // low rows, high weights
            weight += 2 * COLUMN_TILES * TILE_SIZE;
        }
    }
    constexpr int64_t bytes = SUMS_STRIDE * sizeof(float);
    _tile_stored(0, sums, bytes);
    if constexpr (COLUMN_TILES > 1) _tile_stored(1, sums + TILE_SIDE, bytes);
    if constexpr (ROW_TILES > 1) _tile_stored(2, sums + TILE_SIDE * SUMS_STRIDE, bytes);
    if constexpr (ROW_TILES > 1 && COLUMN_TILES > 1)
        _tile_stored(3, sums + TILE_SIDE * SUMS_STRIDE + TILE_SIDE, bytes);
}

template <int COLUMN_TILES>
void sum_panel(const Conv& conv, const uint16_t* x, int64_t begin, int64_t end,
               const uint16_t* weight, float* sums) {
    for (int64_t row = begin; row < end; row += 2 * TILE_SIDE) {
        float* to = sums + (row - begin) * SUMS_STRIDE;
        if (end - row > TILE_SIDE)
            sum_tiles<2, COLUMN_TILES>(conv, x, row, weight, to);
        else
            sum_tiles<1, COLUMN_TILES>(conv, x, row, weight, to);
    }
}

void convolve_split(const Conv& conv, const void* rows, int64_t begin, int64_t end, int64_t panel,
                    const Epilogue& epilogue, float* sums) {
    const uint16_t* x = static_cast<const uint16_t*>(rows);
    const int64_t first = conv.panel_starts[panel], num_tiles = conv.panel_starts[panel + 1] - first;
    const int64_t depth = conv.num_taps * round_up(conv.num_in, SPLIT_DEPTH);
    const uint16_t* weight = conv.split.data() + 2 * first * TILE_SIDE * depth;
    _tile_loadconfig(&TILE_CONFIG);
    if (num_tiles > 1)
        sum_panel<2>(conv, x, begin, end, weight, sums);
    else
        sum_panel<1>(conv, x, begin, end, weight, sums);
    _tile_release();
    for (int64_t v = 0; v < num_tiles * TILE_VECTORS; ++v)
        finish(conv, epilogue, begin, end, first * TILE_SIDE + v * LANES, sums + v * LANES,
               SUMS_STRIDE);
}

// Whether the processor has AMX and the system grants its registers to this process.
bool has_amx() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    constexpr unsigned bfloat16 = 1u << 22, tile = 1u << 24;
    if ((edx & bfloat16) == 0 || (edx & tile) == 0) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

constexpr Kernels make_amx_kernels() {
    Kernels kernels = make_kernels("amx");
    kernels.split = {2, TILE_SIDE, MAX_TILES, true, split_row, split_weight, convolve_split};
    return kernels;
}

}  // namespace
#endif

namespace vivace::codec {

const Kernels* kernels_amx() {
#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
    static constexpr Kernels kernels = make_amx_kernels();
    static const bool is_available = kernels_avx512() != nullptr && has_amx();
    if (is_available) return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
