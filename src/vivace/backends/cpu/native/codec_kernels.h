// The codec's arithmetic for one instruction set. A file per instruction set fills one `Kernels`.
//
// Activations are rows of channels: a row is one point in time. A convolution reads rows that begin
// with the layer's past, so neither windows nor dilations copy anything. A transposed convolution
// whose kernel is once or twice its stride is a convolution with one or two taps and
// stride * channels outputs: the outputs of one row are the next layer's rows.
//
// Every output is one chain of fused multiply-adds over taps and channels. Neither the number of
// rows nor the number of threads changes its order, so samples do not depend on chunk sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "unroll.h"

namespace vivace::codec {

// Begins at a cache line: vectors and tiles do not cross lines.
template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};

    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
    void deallocate(T* memory, size_t) { ::operator delete(memory, LINE); }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};
template <class T>
using Buffer = std::vector<T, LineAllocator<T>>;

struct Snake {  // x + sin^2(x * frequency) * gain; padded to whole vectors
    const float* frequency = nullptr;
    const float* gain = nullptr;
};

enum class Activation { none, gelu, snake };

// How a sum with its bias is stored. All rows have `Conv::num_out` columns. The kinds are:
//   out = activation(x)
//   out = residual + scale * x
//   out = residual + x, next = next_snake(out); residual and out may be null
struct Epilogue {
    Activation activation = Activation::none;
    Snake snake;                      // of Activation::snake
    const float* scale = nullptr;     // per output
    const float* residual = nullptr;  // may be `out`
    float* out = nullptr;
    float* next = nullptr;
    Snake next_snake;
};

struct SplitKernels;

// A packed convolution; a linear layer has one tap.
struct Conv {
    int64_t num_in = 0, num_out = 0, num_taps = 1, dilation = 1;
    std::vector<int> panel_starts;  // first vector of each panel, and the end
    Buffer<float> weight;           // of each panel: [taps, in, lanes of the panel]
    Buffer<uint16_t> half;          // the weight in float16, instead of `weight`; or empty
    Buffer<float> bias;             // padded to whole vectors
    // The weight in the format of `SplitKernels::split_weight`, instead of `weight`.
    const SplitKernels* split_kernels = nullptr;  // null: the weight is not split
    Buffer<uint16_t> split;
    Buffer<float> split_scale;  // per output; AMX has none

    int64_t num_panels() const { return static_cast<int64_t>(panel_starts.size()) - 1; }
    int64_t reach() const { return (num_taps - 1) * dilation; }
};

// The input of a convolution: its past, then its new rows.
struct Rows {
    const float* full = nullptr;      // [count, num_in]
    const uint16_t* split = nullptr;  // all rows as `SplitKernels::split_row` writes them
    int64_t count = 0;
};

struct Attention {
    int64_t num_heads, num_kv_heads, head_dim, window;
    int64_t capacity;   // rows of the ring buffer
    const float* keys;  // [capacity, 2, kv_heads * head_dim]: the key and the value of a row
};

// Convolutions of other numbers than float32. A row takes the memory of
// `split_width(num_in, num_parts)` numbers of 16 bits.
struct SplitKernels {
    int num_parts = 0;  // numbers per channel; 0: there are no such kernels
    int num_lanes = 0, max_vectors = 0;
    bool is_for_all = false;  // false: only for layers after the transformer
    // Writes one of `num_rows` rows.
    void (*split_row)(const float* x, int64_t num_in, int64_t row, int64_t num_rows,
                      uint16_t* out) = nullptr;
    void (*split_weight)(Conv& conv) = nullptr;  // fills `split` and `split_scale`, which are zero
    void (*convolve)(const Conv&, const Rows&, int64_t begin, int64_t end, int64_t panel,
                     const Epilogue&, float* sums) = nullptr;
    // Before and after the calls of `convolve` of one thread; may be null.
    void (*begin)() = nullptr;
    void (*end)() = nullptr;
};

struct Kernels {
    const char* name;
    int num_lanes;    // floats of a vector
    int max_vectors;  // of a panel
    // Rounds numbers to float16, or stops at one that would change and returns false. Null if
    // `convolve` cannot read `Conv::half`.
    bool (*narrow)(const float* x, int64_t size, bool may_change, uint16_t* out);
    SplitKernels split;
    SplitKernels coarse;  // instead of `split` for the layers that tolerate the largest errors
    // Rows `begin` to `end` of one panel; `sums` is scratch for MAX_CONV_ROWS rows of the panel.
    void (*convolve)(const Conv&, const Rows&, int64_t begin, int64_t end, int64_t panel,
                     const Epilogue&, float* sums);
    // One output without activation: dot products over all taps and channels, clamped to -1 to 1.
    void (*convolve_to_one)(const Conv&, const float* x, int64_t begin, int64_t end, float* out);
    // `num_taps` taps per channel, then LayerNorm. `weight` is [taps, channels].
    void (*depthwise_norm)(const float* x, int64_t num_channels, int64_t num_taps,
                           const float* weight, const float* bias, const float* norm_weight,
                           const float* norm_bias, float eps, float* out);
    void (*snake)(const float* x, int64_t size, float frequency, float gain, float* out);
    void (*rms_norm)(const float* x, int64_t size, const float* weight, float eps, float* out);
    void (*gate)(const float* gate_up, int64_t size, float* out);  // silu(gate) * up
    // Attention of one query head at `position`; `scores` is scratch for a window.
    void (*attend)(const Attention&, const float* query, int64_t head, int64_t position,
                   float* scores, float* out);
};

constexpr int64_t MAX_CONV_ROWS = 64;  // of one call of `convolve`
constexpr int64_t SPLIT_DEPTH = 32;    // channels of one AMX tile

inline int64_t split_width(int64_t num_in, int num_parts) {
    return num_parts * ((num_in + SPLIT_DEPTH - 1) / SPLIT_DEPTH * SPLIT_DEPTH);
}

// Null where the compiler or the processor lacks the instruction set.
const Kernels* kernels_plain();  // of the architecture's baseline
const Kernels* kernels_half();
const Kernels* kernels_int8();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_amx();
const Kernels* kernels_bf16();

}  // namespace vivace::codec
