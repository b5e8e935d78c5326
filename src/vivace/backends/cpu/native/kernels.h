// The arithmetic of one thread, as a table of functions per instruction set.
//
// All sums of a row run in an order that does not depend on the other rows, so a row's result is
// the same in every batch. Sums of integers are equal on all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "unroll.h"

namespace vivace {

constexpr int GROUP = 32;      // inputs that share a scale
constexpr int MAX_LANES = 8;   // partial sums of a group
constexpr int PAGE = 64;       // positions of a page of keys and values
constexpr int MAX_TILE_ROWS = 64;  // rows of a product that uses `scratch`
constexpr int BLOCK_FLOATS = 4096;  // widened weights of a float product, half of a first-level cache

enum Kind : int { F32 = 0, BF16 = 1, F16 = 2, INT8 = 3, INT4 = 4 };

// Rows [out, in] of numbers in memory of the caller; the layouts are those of model/quantized.py.
struct Matrix {
    int kind = F32;
    int out = 0, in = 0;
    const void* weight = nullptr;
    const void* scale = nullptr;    // INT8: float [out]; INT4: float16 [out, in / GROUP]
    const float* bias = nullptr;    // [out], or null
};

// Inputs of products, rounded in groups. The last group of an INT8 matrix may be shorter.
struct Inputs {
    const float* x = nullptr;   // [rows, in], read by F32, BF16 and F16
    int8_t* codes = nullptr;    // [rows, in]; INT4 in an order of the instruction set
    float* scale = nullptr;     // [rows, groups]
    int32_t* start = nullptr;   // [rows, groups, MAX_LANES]: where partial sums start
};

struct Product {
    const Matrix* matrix;
    Inputs inputs;
    int num_rows;
    int begin, end;  // outputs to compute
    float* out;      // [num_rows, stride]
    size_t stride;
    bool adds;       // add to `out` instead of writing it
    char* scratch;   // of `scratch_bytes`, aligned to 64 bytes, or null; one per thread
};

// One query position of the heads that share keys.
struct Attention {
    const float* queries;  // [num_queries, head_dim]
    int num_queries, head_dim;
    float* out;             // [num_queries, head_dim]
    char* const* pages;     // of PAGE positions each
    size_t keys, values;    // offsets in a page, in bytes
    int length;             // positions to attend to
    bool is_half;           // keys and values are float16
    float* weights;         // scratch [num_queries, length]; afterwards the attention weights
};

struct Kernels {
    const char* name;
    // Rounds one row of inputs for a matrix of this kind.
    void (*round_row)(int kind, const float* x, int in, int8_t* codes, float* scale,
                      int32_t* start);
    void (*multiply)(const Product& product);
    void (*normalise)(const float* x, const float* weight, int size, float eps, float* out);
    // gate = silu(gate) * up
    void (*gate)(float* gate, const float* up, int size);
    void (*attend)(const Attention& attention);
    void (*store_half)(const float* x, int size, void* out);
};

// Null where the compiler or the machine's architecture does not have the instructions.
const Kernels* portable_kernels();
const Kernels* dotprod_kernels();
const Kernels* i8mm_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512f_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();

// The fastest set of this machine, or the one with this name; null if it cannot run.
const Kernels* find_kernels(const char* name);

static inline float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float from_bf16(uint16_t bits) { return bits_to_float(uint32_t(bits) << 16); }

static inline float from_half(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) {  // zero or subnormal: rest * 2^-24
        const float value = float(rest) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    return bits_to_float(sign | ((rest << 13) + 0x38000000));
}

static inline uint16_t to_half(float value) {  // rounds to nearest, ties to even
    const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000;
    const uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (rest < 0x38800000)  // subnormal: the float adder rounds to a multiple of 2^-24
        return uint16_t(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000));
    return uint16_t(sign | ((rest + 0xc8000fff + (rest >> 13 & 1)) >> 13));
}

static inline int num_groups(int in) { return (in + GROUP - 1) / GROUP; }

// Outputs of a float product whose weights are widened together: a multiple of 4.
static inline int block_outputs(int in) {
    const int count = in > 0 ? BLOCK_FLOATS / in / 4 * 4 : 4;
    return count < 4 ? 4 : count;
}

// Memory for a copy of the inputs of a product and their scales, in tiles of sixteen rows and pairs of
// groups, or for a block of widened weights.
static inline size_t scratch_bytes(int num_rows, int in) {
    const size_t groups = (size_t(num_groups(in)) + 1) / 2 * 2, tiles = size_t(num_rows + 15) / 16;
    const size_t inputs = tiles * groups * 16 * (GROUP + sizeof(float));
    const size_t weights = size_t(in < BLOCK_FLOATS / 4 ? BLOCK_FLOATS : 4 * in) * sizeof(float);
    return inputs < weights ? weights : inputs;
}

// Starts of the four partial sums of an INT4 group: sum i has inputs 4i to 4i + 3 of both halves.
// Stored weights are 8 more than the weights.
static inline void start_int4(const int8_t* codes, int32_t* start) {
    for (int i = 0; i < 4; ++i) {
        int32_t total = 0;
        for (int j = 4 * i; j < 4 * i + 4; ++j) total += codes[j] + codes[j + GROUP / 2];
        start[i] = -8 * total;
    }
}

}  // namespace vivace
