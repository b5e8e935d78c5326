// Integer products by tiles of outputs and rows, over the dot products of one instruction set. Included
// by kernels_impl.h.
//
// The file of the instruction set defines:
//   INTEGER_TILE           outputs per pass of products with several rows of inputs
//   NUM_STREAMS            places from which one row of inputs reads weights alternately
//   dot_int4<OUT, ROWS>
//   dot_int8<OUT, ROWS>, or multiply_int8 if HAS_INT8_BLOCKS is defined
//   multiply_packed        another way to compute some outputs, if HAS_PACKED_ROWS is defined

struct Int4Tile {
    static constexpr int KIND = INT4;

    template <int OUT, int ROWS>
    static inline void compute(const Product& p, int o, int r, float (&out)[OUT][ROWS]) {
        const Matrix& m = *p.matrix;
        const size_t in = size_t(m.in), groups = size_t(num_groups(m.in)), at = size_t(r) * groups;
        dot_int4<OUT, ROWS>(static_cast<const uint8_t*>(m.weight) + size_t(o) * (in / 2),
                            static_cast<const uint16_t*>(m.scale) + size_t(o) * groups,
                            p.inputs.codes + size_t(r) * in, p.inputs.scale + at,
                            p.inputs.start + at * MAX_LANES, groups, out);
    }
};

#ifndef HAS_INT8_BLOCKS
struct Int8Tile {
    static constexpr int KIND = INT8;

    template <int OUT, int ROWS>
    static inline void compute(const Product& p, int o, int r, float (&out)[OUT][ROWS]) {
        const Matrix& m = *p.matrix;
        const size_t in = size_t(m.in), at = size_t(r) * size_t(num_groups(m.in));
        dot_int8<OUT, ROWS>(static_cast<const int8_t*>(m.weight) + size_t(o) * in,
                            p.inputs.codes + size_t(r) * in, p.inputs.scale + at,
                            p.inputs.start + at * MAX_LANES, in, out);
        const float* scale = static_cast<const float*>(m.scale) + o;
        for (int i = 0; i < OUT; ++i)
            for (int j = 0; j < ROWS; ++j) out[i][j] *= scale[i];
    }
};
#endif

// The number of the output to compute after i others. Those of NUM_STREAMS equal parts take turns,
// then the rest follows.
static inline int nth_output(int i, int count) {
    const int part = count / NUM_STREAMS;
    return i < NUM_STREAMS * part ? i % NUM_STREAMS * part + i / NUM_STREAMS : i;
}

// One row of inputs reads whole rows of weights, which hardware prefetchers follow best. A core reads
// faster from several places, each in the order of memory, than from one. The sums are the same.
template <class Tile>
static void multiply_integers(const Product& p) {
    if (p.num_rows == 1) {
        const int count = p.end - p.begin;
        for (int i = 0; i < count; ++i) compute<Tile, 1, 1>(p, p.begin + nth_output(i, count), 0);
        return;
    }
#ifdef HAS_PACKED_ROWS
    multiply_tiles<Tile, INTEGER_TILE>(p, multiply_packed<Tile::KIND>(p));
#else
    multiply_tiles<Tile, INTEGER_TILE>(p, p.begin);
#endif
}

static void multiply_int4(const Product& p) { multiply_integers<Int4Tile>(p); }

#ifndef HAS_INT8_BLOCKS
static void multiply_int8(const Product& p) { multiply_integers<Int8Tile>(p); }
#endif
