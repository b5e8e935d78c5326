// x86-64 with AMX: int8 products of several rows in tiles. All other functions are those of AVX-512.
//
// A tile of weights has sixteen outputs and the 32 inputs of a group, in memory of the caller. A tile
// of inputs has four inputs of sixteen rows per line. Their product is the sums of a group; lane i of
// a line is row i.
#include "kernels.h"

#if defined(__AMX_INT8__) && defined(__AMX_TILE__) && defined(__linux__)

#include <immintrin.h>

#include "amx.h"

namespace vivace {
namespace {

#include "kernels_avx512.h"

#include "kernels_vnni_int4.h"

#include "kernels_vnni.h"

constexpr int TILE_ROWS = 16;          // rows of inputs of a tile
constexpr int MAX_TILES = 4;           // of inputs that share a tile of weights
constexpr size_t LINE = 64;            // bytes of a line of a tile
constexpr size_t GROUP_LINES = 8;      // of a tile of inputs
static_assert(TILE_ROWS * MAX_TILES >= MAX_TILE_ROWS, "a product has at most four tiles of rows");

struct Int8Config : TileConfig {  // tile 0: sums, 1: weights, 2: inputs
    constexpr Int8Config() {
        row_bytes[1] = GROUP;
        num_rows[2] = GROUP_LINES;
    }
};
constexpr Int8Config TILE_CONFIG;  // in memory: the compiler cannot see what the instruction reads

// Inputs of sixteen rows: tiles of all groups, then the scales of all groups.
struct Packed {
    char* tiles;    // [groups, 8 lines, 16 rows, 4 inputs]
    float* scales;  // [groups, 16 rows]
};

inline Packed locate(const Product& p, int tile) {
    const size_t groups = size_t(num_groups(p.matrix->in)), padded = (groups + 1) / 2 * 2;
    const size_t tiles = padded * GROUP_LINES * LINE, scales = padded * LINE;
    char* first = p.scratch + size_t(tile) * (tiles + scales);
    return {first, reinterpret_cast<float*>(first + tiles)};
}

// Rows beyond the last one are zeros.
inline void pack(const Product& p, int tile) {
    const Packed to = locate(p, tile);
    const size_t in = size_t(p.matrix->in), groups = in / GROUP;
    const int first = tile * TILE_ROWS, left = p.num_rows - first;
    const Inputs x = skip_rows(p.inputs, in, first);
    for (size_t i = 0; i < in; i += PAIR) {
        const __mmask64 bytes = ~__mmask64(0) >> (in - i < PAIR ? PAIR - (in - i) : 0);
        __m512i lines[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; ++r)
            lines[r] = r < left ? _mm512_maskz_loadu_epi8(bytes, x.codes + size_t(r) * in + i)
                                : _mm512_setzero_si512();
        transpose(lines);
        for (size_t r = 0; r < TILE_ROWS; ++r)
            _mm512_store_si512(to.tiles + (i / GROUP * GROUP_LINES + r) * LINE, lines[r]);
    }
    for (size_t g = 0; g < groups; ++g)
        for (int r = 0; r < TILE_ROWS; ++r)
            to.scales[g * TILE_ROWS + size_t(r)] = r < left ? x.scale[size_t(r) * groups + g] : 0.0f;
}

// Sums of group g of sixteen outputs, whose weights are in tile 1, and of sixteen rows.
inline void sum_group(const Packed& x, size_t g, int32_t* sums) {
    _tile_zero(0);
    _tile_loadd(2, x.tiles + g * GROUP_LINES * LINE, LINE);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, LINE);
}

inline void add_sums(const int32_t* sums, const float* scales, V (&totals)[BLOCK]) {
    const V scale = load(scales);
    UNROLL for (int o = 0; o < BLOCK; ++o)
        totals[o] = add_group(totals[o], _mm512_load_si512(sums + o * TILE_ROWS), scale);
}

// Sixteen outputs of all rows, which are in NUM tiles.
template <int NUM>
inline void multiply_tiles(const Product& p, int o) {
    const size_t in = size_t(p.matrix->in), groups = in / GROUP;
    const int8_t* weight = static_cast<const int8_t*>(p.matrix->weight) + size_t(o) * in;
    alignas(64) int32_t sums[MAX_TILES][BLOCK * TILE_ROWS];
    V totals[NUM][BLOCK];
    Packed x[NUM];
    for (int t = 0; t < NUM; ++t) {
        x[t] = locate(p, t);
        for (V& each : totals[t]) each = splat(0.0f);
    }
    for (size_t g = 0; g < groups; ++g) {
        const int8_t* from = weight + g * GROUP;
        if (g % 2 == 0)
            for (size_t i = 0; i < BLOCK; ++i) __builtin_prefetch(from + (BLOCK + i) * in, 0, 2);
        _tile_loadd(1, from, int64_t(in));
        UNROLL for (int t = 0; t < NUM; ++t) {
            sum_group(x[t], g, sums[t]);
            add_sums(sums[t], x[t].scales + g * TILE_ROWS, totals[t]);
        }
    }
    for (int t = 0; t < NUM; ++t) {
        __m512i rows[TILE_ROWS];
        UNROLL for (int i = 0; i < BLOCK; ++i) rows[i] = _mm512_castps_si512(totals[t][i]);
        transpose(rows);
        for (int r = 0; r < TILE_ROWS && t * TILE_ROWS + r < p.num_rows; ++r)
            store_outputs(p, o, t * TILE_ROWS + r, _mm512_castsi512_ps(rows[r]));
    }
}

// Computes sixteen outputs at a time. Returns the first output that is left to other functions:
// `p.begin`, if the product has one row or its inputs are not whole groups.
inline int multiply_in_tiles(const Product& p) {
    if (p.num_rows == 1 || p.num_rows > MAX_TILE_ROWS || p.matrix->in % GROUP || !p.scratch)
        return p.begin;
    const int num = (p.num_rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int t = 0; t < num; ++t) pack(p, t);
    _tile_loadconfig(&TILE_CONFIG);
    int o = p.begin;
    for (; o + BLOCK <= p.end; o += BLOCK) switch (num) {
            case 1: multiply_tiles<1>(p, o); break;
            case 2: multiply_tiles<2>(p, o); break;
            case 3: multiply_tiles<3>(p, o); break;
            default: multiply_tiles<4>(p, o);
        }
    _tile_release();
    return o;
}

inline void multiply_int8(const Product& p) { multiply_blocks(p, multiply_in_tiles(p)); }

#include "kernels_impl.h"

}  // namespace

const Kernels* amx_kernels() {
    static const Kernels table = make_table("amx");
    static const bool is_available = has_tiles(AMX_INT8);
    return is_available ? &table : nullptr;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace vivace

#endif
