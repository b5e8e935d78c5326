// int8 products with AVX-512 VNNI, sixteen outputs at a time. Included after kernels_avx512.h.
//
// Lane i of a vector is output i of a block. A group's sum of integers is exact, and its float is added
// to the output's total in the order of the groups: for one row of inputs, for several, and in tiles
// (kernels_amx.cpp). So a row's result does not depend on the other rows.
#define HAS_INT8_BLOCKS

constexpr int BLOCK = 16;           // outputs of a block
constexpr int MAX_BLOCK_ROWS = 64;  // rows that share transposed weights
constexpr size_t PAIR = 2 * GROUP;  // inputs of a vector: two groups

// The weights of a block. Outputs beyond the last one repeat it, and are not stored.
template <bool IS_WHOLE>
struct Block {
    const int8_t* first;
    size_t in;
    int last;

    const int8_t* row(int o) const {
        return first + size_t(IS_WHOLE || o < last ? o : last) * in;
    }
    // `count` inputs of an output from i on, raised by 128. Prefetches those of the next block into the
    // second-level cache, because a block can be larger than the first.
    __m512i load(int o, size_t i, size_t count) const {
        const int8_t* from = row(o) + i;
        __builtin_prefetch(from + BLOCK * in, 0, 2);
        const __m512i weight =
            count < PAIR ? _mm512_maskz_loadu_epi8(~__mmask64(0) >> (PAIR - count), from)
                         : _mm512_loadu_si512(from);
        return _mm512_xor_si512(weight, _mm512_set1_epi8(char(0x80)));
    }
};

// Turns four vectors: quarters 0 of all, then quarters 1, 2 and 3.
inline void turn_quarters(__m512i (&x)[4]) {
    const __m512i near = _mm512_shuffle_i32x4(x[0], x[1], 0x44);  // quarters 0 and 1
    const __m512i near2 = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const __m512i far = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i far2 = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(near, near2, 0x88);
    x[1] = _mm512_shuffle_i32x4(near, near2, 0xdd);
    x[2] = _mm512_shuffle_i32x4(far, far2, 0x88);
    x[3] = _mm512_shuffle_i32x4(far, far2, 0xdd);
}

// Adds the numbers of every quarter of sixteen vectors: lane i of out[q] is of quarter q of vector i.
inline void sum_quarters(const __m512i (&x)[BLOCK], __m512i (&out)[4]) {
    UNROLL for (int i = 0; i < 4; ++i) {
        const __m512i a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3];
        const __m512i ab =
            _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const __m512i cd =
            _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        out[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    turn_quarters(out);
}

// Turns sixteen vectors of sixteen numbers: lane j of vector i becomes lane i of vector j.
inline void transpose(__m512i (&x)[BLOCK]) {
    __m512i numbers[4][4];  // [number of a quarter, four vectors]
    UNROLL for (int i = 0; i < 4; ++i) {
        const __m512i a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3];
        const __m512i low_ab = _mm512_unpacklo_epi32(a, b), high_ab = _mm512_unpackhi_epi32(a, b);
        const __m512i low_cd = _mm512_unpacklo_epi32(c, d), high_cd = _mm512_unpackhi_epi32(c, d);
        numbers[0][i] = _mm512_unpacklo_epi64(low_ab, low_cd);
        numbers[1][i] = _mm512_unpackhi_epi64(low_ab, low_cd);
        numbers[2][i] = _mm512_unpacklo_epi64(high_ab, high_cd);
        numbers[3][i] = _mm512_unpackhi_epi64(high_ab, high_cd);
    }
    UNROLL for (int n = 0; n < 4; ++n) {
        turn_quarters(numbers[n]);
        UNROLL for (int q = 0; q < 4; ++q) x[4 * q + n] = numbers[n][q];
    }
}

inline V add_group(V total, __m512i sums, V scale) {
    return fma(_mm512_cvtepi32_ps(sums), scale, total);
}

// One row: the weights of each output are read in the order of memory, and the partial sums of a group
// are added across the lanes.
template <bool IS_WHOLE>
inline V dot_block(const Block<IS_WHOLE>& block, const Inputs& x) {
    V total = splat(0.0f);
    for (size_t i = 0; i < block.in; i += PAIR) {
        const size_t left = block.in - i, count = left < PAIR ? left : PAIR, g = i / GROUP;
        const __m512i input =
            _mm512_maskz_loadu_epi8(~__mmask64(0) >> (PAIR - count), x.codes + i);
        __m512i sums[BLOCK], quarters[4];
        UNROLL for (int o = 0; o < BLOCK; ++o)
            sums[o] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), block.load(o, i, count), input);
        sum_quarters(sums, quarters);
        UNROLL for (size_t j = 0; j < 2; ++j) {
            if (j * GROUP >= count) break;
            const __m512i sum = _mm512_add_epi32(quarters[2 * j], quarters[2 * j + 1]);
            total = add_group(total, _mm512_add_epi32(sum, _mm512_set1_epi32(x.start[g + j])),
                              splat(x.scale[g + j]));
        }
    }
    return total;
}

inline __m512i splat_four(const int8_t* p) {
    int32_t bits;
    memcpy(&bits, p, 4);
    return _mm512_set1_epi32(bits);
}

// Adds a group to the totals of rows. `weight` has four inputs of all outputs per vector.
inline void add_rows(const __m512i* weight, const int8_t* codes, size_t stride, const Inputs& x,
                     size_t g, size_t groups, int num_rows, V* totals) {
    const __m512i w[8] = {weight[0], weight[1], weight[2], weight[3],
                          weight[4], weight[5], weight[6], weight[7]};
    for (size_t r = 0; r < size_t(num_rows); ++r, codes += stride) {
        __m512i first = _mm512_set1_epi32(x.start[r * groups * MAX_LANES + g]);
        __m512i second = _mm512_setzero_si512();
        UNROLL for (int i = 0; i < 8; i += 2) {
            first = _mm512_dpbusd_epi32(first, w[i], splat_four(codes + 4 * i));
            second = _mm512_dpbusd_epi32(second, w[i + 1], splat_four(codes + 4 * i + 4));
        }
        totals[r] = add_group(totals[r], _mm512_add_epi32(first, second),
                              splat(x.scale[r * groups + g]));
    }
}

// Several rows: the weights are transposed once, and each of their vectors is multiplied with all rows.
template <bool IS_WHOLE>
inline void add_block(const Block<IS_WHOLE>& block, const Inputs& x, int num_rows, V* totals) {
    const size_t in = block.in, groups = size_t(num_groups(int(in)));
    for (size_t i = 0; i < in; i += PAIR) {
        const size_t left = in - i, count = left < PAIR ? left : PAIR, g = i / GROUP;
        int8_t padded[MAX_BLOCK_ROWS][PAIR];  // the last inputs, with zeros beyond the end
        const int8_t* codes = x.codes + i;
        size_t stride = in;
        if (count < PAIR) {
            memset(padded, 0, size_t(num_rows) * PAIR);
            for (int r = 0; r < num_rows; ++r) memcpy(padded[r], codes + size_t(r) * in, count);
            codes = padded[0], stride = PAIR;
        }
        __m512i weight[BLOCK];
        UNROLL for (int o = 0; o < BLOCK; ++o) weight[o] = block.load(o, i, count);
        transpose(weight);
        add_rows(weight, codes, stride, x, g, groups, num_rows, totals);
        if (count > GROUP)
            add_rows(weight + 8, codes + GROUP, stride, x, g + 1, groups, num_rows, totals);
    }
}

// Stores the outputs of a block from `o` on, of one row.
inline void store_outputs(const Product& p, int o, int row, V value) {
    const Matrix& m = *p.matrix;
    const int left = p.end - o, count = left < BLOCK ? left : BLOCK;
    const __mmask16 lanes = __mmask16(0xffff >> (BLOCK - count));
    float* to = p.out + size_t(row) * p.stride + o;
    value = mul(value, _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(m.scale) + o));
    if (m.bias) value = add(value, _mm512_maskz_loadu_ps(lanes, m.bias + o));
    if (p.adds) value = add(_mm512_maskz_loadu_ps(lanes, to), value);
    _mm512_mask_storeu_ps(to, lanes, value);
}

inline Inputs skip_rows(const Inputs& x, size_t in, int num_rows) {
    const size_t rows = size_t(num_rows), groups = rows * size_t(num_groups(int(in)));
    return {nullptr, x.codes + rows * in, x.scale + groups, x.start + groups * MAX_LANES};
}

template <bool IS_WHOLE>
inline void multiply_block(const Product& p, int o) {
    const size_t in = size_t(p.matrix->in);
    const int8_t* weight = static_cast<const int8_t*>(p.matrix->weight) + size_t(o) * in;
    const Block<IS_WHOLE> block{weight, in, p.end - o - 1};
    if (p.num_rows == 1) return store_outputs(p, o, 0, dot_block(block, p.inputs));
    for (int first = 0; first < p.num_rows; first += MAX_BLOCK_ROWS) {
        const int left = p.num_rows - first, count = left < MAX_BLOCK_ROWS ? left : MAX_BLOCK_ROWS;
        V totals[MAX_BLOCK_ROWS];
        for (int r = 0; r < count; ++r) totals[r] = splat(0.0f);
        add_block(block, skip_rows(p.inputs, in, first), count, totals);
        for (int r = 0; r < count; ++r) store_outputs(p, o, first + r, totals[r]);
    }
}

// Computes the outputs from `o` on.
inline void multiply_blocks(const Product& p, int o) {
    for (; o + BLOCK <= p.end; o += BLOCK) multiply_block<true>(p, o);
    if (o < p.end) multiply_block<false>(p, o);
}
