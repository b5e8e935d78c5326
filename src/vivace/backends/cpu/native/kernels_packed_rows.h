// Integer products of several rows of inputs, with dot products by lane. Included by files of ARM
// instruction sets after kernels_dot_products.h.
//
// The weights of PACKED_OUT outputs are rearranged once for all rows. A vector then holds the sums of
// four outputs, so no lanes are added up, and a vector of weights serves several rows. Like `dot`, a
// row has four float sums: group g is added to sum g % 4. Both give the same bits.
#define HAS_PACKED_ROWS

constexpr int PACKED_OUT = 8;         // outputs of a tile
constexpr int PACKED_VECTORS = PACKED_OUT / 4;
constexpr int PACKED_ROWS = 4;        // of a tile: eight chains of sums keep both pipelines busy
constexpr int MIN_PACKED_ROWS = 5;    // fewer rows do not make up for the time to rearrange weights
constexpr int MAX_PACKED_ROWS = 64;   // that share rearranged weights
constexpr size_t PACKED_GROUPS = 32;  // whose weights stay in the first-level cache for all rows

// Sums of a group start with the bits of this float: the bits of a sum are those of ROUNDED + sum. A
// subtraction then replaces the conversion to float, which takes four times as long on a
// Neoverse-N1. The largest sum of a group is below 2^20.
constexpr float ROUNDED = 12582912.0f;  // 1.5 * 2^23

struct PackedTile {
    // [groups, inputs / 4, outputs, 4 inputs]
    alignas(64) int8_t codes[PACKED_GROUPS][GROUP / 4][PACKED_OUT][4];
    float scale[PACKED_GROUPS][PACKED_OUT];  // of INT4
};

// The weights of the next tile, which are prefetched while the first rows of a tile are computed.
struct NextTile {
    const char* from = nullptr;  // null: none
    size_t stride = 0;           // bytes from an output to the next
    size_t group_bytes = 0;

    // Called with all groups of a tile, it prefetches all lines of as many groups.
    void prefetch(size_t g) const {
        const size_t groups = 64 / group_bytes, outputs = PACKED_OUT / groups;
        for (size_t i = 0; i < outputs; ++i)
            __builtin_prefetch(from + (g % groups * outputs + i) * stride + g / groups * 64);
    }
};

struct PackedTotals {
    float32x4_t parts[4][PACKED_VECTORS];  // of groups with g % 4 = 0, 1, 2 and 3
};

// Writes 16 inputs of four outputs.
inline void pack_inputs(const int8x16_t (&rows)[4], int8_t* to) {
    int32x4_t x[4];
    UNROLL for (int o = 0; o < 4; ++o) x[o] = vreinterpretq_s32_s8(rows[o]);
    transpose(x);
    UNROLL for (int i = 0; i < 4; ++i) vst1q_s8(to + 4 * PACKED_OUT * i, vreinterpretq_s8_s32(x[i]));
}

inline Group centre(const Int8Weights&, Group group) { return group; }
inline Group centre(const Int4Weights&, Group group) {  // stored weights are 8 more than the weights
    const int8x16_t eight = vdupq_n_s8(8);
    return {vsubq_s8(group.low, eight), vsubq_s8(group.high, eight)};
}

template <class Weights>
inline void pack(const Weights& weights, size_t first, size_t count, PackedTile& tile) {
    for (size_t g = 0; g < count; ++g)
        for (int o = 0; o < PACKED_OUT; o += 4) {
            Group groups[4];
            [[maybe_unused]] uint16_t scales[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                groups[i] = centre(weights, weights.load(o + i, first + g));
                if constexpr (Weights::HAS_STARTS)
                    scales[i] = weights.scale[size_t(o + i) * weights.groups + first + g];
            }
            if constexpr (Weights::HAS_STARTS) vst1q_f32(tile.scale[g] + o, load_half(scales));
            pack_inputs({groups[0].low, groups[1].low, groups[2].low, groups[3].low},
                        tile.codes[g][0][o]);
            pack_inputs({groups[0].high, groups[1].high, groups[2].high, groups[3].high},
                        tile.codes[g][4][o]);
        }
}

// sums + weights * x[LANE]. GCC puts calls of the intrinsic that wait for each other side by side.
template <int LANE>
inline int32x4_t add_products(int32x4_t sums, int8x16_t weights, int8x16_t x) {
    asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sums) : "w"(weights), "w"(x), "i"(LANE));
    return sums;
}

// Adds the products of inputs 4 * LANE to 4 * LANE + 3 of a vector of inputs.
template <int LANE, int ROWS>
inline void add_lane(const int8_t (*weight)[PACKED_OUT][4], const int8x16_t (&x)[ROWS],
                     int32x4_t (&sums)[ROWS][PACKED_VECTORS]) {
    UNROLL for (int v = 0; v < PACKED_VECTORS; ++v) {
        const int8x16_t columns = vld1q_s8(weight[LANE][4 * v]);
        UNROLL for (int r = 0; r < ROWS; ++r)
            sums[r][v] = add_products<LANE>(sums[r][v], columns, x[r]);
    }
}

template <int ROWS>
inline void add_sixteen(const int8_t (*weight)[PACKED_OUT][4], const int8_t* x, size_t stride,
                        int32x4_t (&sums)[ROWS][PACKED_VECTORS]) {
    int8x16_t inputs[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) inputs[r] = vld1q_s8(x + size_t(r) * stride);
    add_lane<0>(weight, inputs, sums);
    add_lane<1>(weight, inputs, sums);
    add_lane<2>(weight, inputs, sums);
    add_lane<3>(weight, inputs, sums);
}

// Adds the groups g of the tile with g % 4 = `part`, which begins with group `first` of the inputs.
template <bool HAS_SCALES, int ROWS>
inline void add_part(const PackedTile& tile, const Rows& rows, size_t first, size_t count, int part,
                     const NextTile& next, PackedTotals* totals) {
    const float32x4_t rounded = vdupq_n_f32(ROUNDED);
    float32x4_t total[ROWS][PACKED_VECTORS];
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int v = 0; v < PACKED_VECTORS; ++v) total[r][v] = totals[r].parts[part][v];
    for (size_t g = size_t(part); g < count; g += 4) {
        const int8_t* x = rows.codes + (first + g) * GROUP;
        if (next.from) next.prefetch(g);
        int32x4_t sums[ROWS][PACKED_VECTORS];
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int v = 0; v < PACKED_VECTORS; ++v)
                sums[r][v] = vreinterpretq_s32_f32(rounded);
        add_sixteen(tile.codes[g], x, rows.in, sums);
        add_sixteen(tile.codes[g] + 4, x + 16, rows.in, sums);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const float x_scale = rows.scale[size_t(r) * rows.groups + first + g];
            UNROLL for (int v = 0; v < PACKED_VECTORS; ++v) {
                const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(sums[r][v]), rounded);
                if constexpr (HAS_SCALES)
                    total[r][v] = vfmaq_f32(
                        total[r][v], sum, vmulq_n_f32(vld1q_f32(tile.scale[g] + 4 * v), x_scale));
                else
                    total[r][v] = vfmaq_n_f32(total[r][v], sum, x_scale);
            }
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int v = 0; v < PACKED_VECTORS; ++v) totals[r].parts[part][v] = total[r][v];
}

// ROWS rows at a time, then the rest.
template <bool HAS_SCALES, int ROWS>
inline void add_packed_rows(const PackedTile& tile, Rows rows, size_t first, size_t count,
                            int num_rows, NextTile next, PackedTotals* totals) {
    for (; num_rows >= ROWS; num_rows -= ROWS, totals += ROWS) {
        for (int part = 0; part < 4; ++part)
            add_part<HAS_SCALES, ROWS>(tile, rows, first, count, part, next, totals);
        next.from = nullptr;
        rows.codes += ROWS * rows.in;
        rows.scale += ROWS * rows.groups;
    }
    if constexpr (ROWS > 1)
        if (num_rows > 0)
            add_packed_rows<HAS_SCALES, ROWS - 1>(tile, rows, first, count, num_rows, next, totals);
}

// Adds all groups of PACKED_OUT outputs.
template <class Weights>
inline void add_packed(const Weights& weights, const Rows& rows, int num_rows,
                       PackedTotals* totals) {
    PackedTile tile;
    for (size_t g = 0; g < rows.groups; g += PACKED_GROUPS) {
        const size_t left = rows.groups - g, count = left < PACKED_GROUPS ? left : PACKED_GROUPS;
        pack(weights, g, count, tile);
        const size_t bytes = Weights::GROUP_BYTES, stride = rows.groups * bytes;
        const size_t ahead = left == count ? PACKED_OUT * stride : (g + count) * bytes;
        const NextTile next{reinterpret_cast<const char*>(weights.codes) + ahead, stride, bytes};
        add_packed_rows<Weights::HAS_STARTS, PACKED_ROWS>(tile, rows, g, count, num_rows, next,
                                                          totals);
    }
}

// Stores PACKED_OUT outputs of a row from `o` on, like `compute`.
inline void store_packed(const Product& p, int o, int row, const PackedTotals& total) {
    const Matrix& m = *p.matrix;
    float* to = p.out + size_t(row) * p.stride + o;
    for (int v = 0; v < PACKED_VECTORS; ++v, o += 4, to += 4) {
        float32x4_t value = vaddq_f32(vaddq_f32(total.parts[0][v], total.parts[1][v]),
                                      vaddq_f32(total.parts[2][v], total.parts[3][v]));
        if (m.kind == INT8)
            value = vmulq_f32(value, vld1q_f32(static_cast<const float*>(m.scale) + o));
        if (m.bias) value = vaddq_f32(value, vld1q_f32(m.bias + o));
        vst1q_f32(to, p.adds ? vaddq_f32(vld1q_f32(to), value) : value);
    }
}

// Computes PACKED_OUT outputs at a time. Returns the first output that is left to other functions:
// `p.begin`, if the product has few rows or its inputs are not a multiple of four groups.
template <int KIND>
inline int multiply_packed(const Product& p) {
    const Matrix& m = *p.matrix;
    const size_t in = size_t(m.in), groups = size_t(num_groups(m.in));
    if (p.num_rows < MIN_PACKED_ROWS || in % (4 * GROUP)) return p.begin;
    int o = p.begin;
    for (; o + PACKED_OUT <= p.end; o += PACKED_OUT)
        for (int first = 0; first < p.num_rows; first += MAX_PACKED_ROWS) {
            const int left = p.num_rows - first;
            const int count = left < MAX_PACKED_ROWS ? left : MAX_PACKED_ROWS;
            const Rows rows{p.inputs.codes + size_t(first) * in,
                            p.inputs.scale + size_t(first) * groups, nullptr, in, groups};
            PackedTotals totals[MAX_PACKED_ROWS];
            memset(totals, 0, size_t(count) * sizeof(PackedTotals));
            if constexpr (KIND == INT8)
                add_packed(Int8Weights{static_cast<const int8_t*>(m.weight) + size_t(o) * in, in},
                           rows, count, totals);
            else
                add_packed(
                    Int4Weights{static_cast<const uint8_t*>(m.weight) + size_t(o) * (in / 2),
                                static_cast<const uint16_t*>(m.scale) + size_t(o) * groups, groups},
                    rows, count, totals);
            for (int r = 0; r < count; ++r) store_packed(p, o, first + r, totals[r]);
        }
    return o;
}
