// `Kernels` for the instruction set that the including file is compiled for.
#pragma once

#include <algorithm>
#include <cmath>

#include "codec_kernels.h"
#include "codec_vector.h"

namespace {

using vivace::codec::Activation;
using vivace::codec::Attention;
using vivace::codec::Conv;
using vivace::codec::Epilogue;
using vivace::codec::Kernels;
using vivace::codec::MAX_CONV_ROWS;
using vivace::codec::Rows;
using vivace::codec::Snake;

// A tile of TILE_ROWS rows and MAX_VECTORS vectors fills the registers.
constexpr int MAX_VECTORS = 3;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TILE_ROWS = 8;  // 32 registers
#else
constexpr int TILE_ROWS = 4;  // 16 registers
#endif
constexpr int64_t MAX_DEPTH = 704;  // of a pass; its weights stay in the cache for all rows

template <int VECTORS>
struct SnakeColumns {
    Vector frequency[VECTORS], gain[VECTORS];
    SnakeColumns(const Snake& snake, int64_t column) {
        UNROLL for (int v = 0; v < VECTORS; ++v) {
            frequency[v] = load(snake.frequency + column + v * LANES);
            gain[v] = load(snake.gain + column + v * LANES);
        }
    }
    Vector operator()(Vector x, int v) const {
        return fma(sine_squared(x * frequency[v]), gain[v], x);
    }
};

// Calls `store_vector(row, v, sum + bias)` for rows of some vectors of columns.
template <int VECTORS, class StoreVector>
inline void for_rows(const float* sums, int64_t stride, int64_t begin, int64_t end,
                     const float* bias, const StoreVector& store_vector) {
    Vector biases[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) biases[v] = load(bias + v * LANES);
    for (int64_t row = begin; row < end; ++row, sums += stride)
        UNROLL for (int v = 0; v < VECTORS; ++v)
            store_vector(row, v, load(sums + v * LANES) + biases[v]);
}

// VECTORS vectors of columns of rows `begin` to `end`. Every kind of epilogue has its own loop.
// IS_WHOLE: no vector crosses the end of a row.
template <int VECTORS, bool IS_WHOLE>
inline void finish_columns(const Conv& conv, const Epilogue& epilogue, int64_t begin, int64_t end,
                           int64_t column, const float* sums, int64_t stride) {
    const int64_t width = conv.num_out, count = width - column;
    const float* residual = epilogue.residual + column;
    float *out = epilogue.out + column, *next = epilogue.next + column;
    const auto for_all = [&](const auto& store_vector) {
        for_rows<VECTORS>(sums, stride, begin, end, conv.bias.data() + column, store_vector);
    };
    const auto load_at = [=](const float* from, int64_t row, int v) {
        from += row * width + v * LANES;
        return IS_WHOLE ? load(from) : load(from, count - v * LANES);
    };
    const auto store_at = [=](float* to, int64_t row, int v, Vector x) {
        to += row * width + v * LANES;
        IS_WHOLE ? store(to, x) : store(to, x, count - v * LANES);
    };
    if (epilogue.next) {
        const SnakeColumns<VECTORS> snake(epilogue.next_snake, column);
        const bool has_residual = epilogue.residual, has_out = epilogue.out;
        for_all([&](int64_t row, int v, Vector x) {
            if (has_residual) x += load_at(residual, row, v);
            if (has_out) store_at(out, row, v, x);
            store_at(next, row, v, snake(x, v));
        });
    } else if (epilogue.residual) {
        const float* scale = epilogue.scale + column;
        for_all([=](int64_t row, int v, Vector x) {
            store_at(out, row, v, fma(x, load(scale + v * LANES), load_at(residual, row, v)));
        });
    } else if (epilogue.activation == Activation::snake) {
        const SnakeColumns<VECTORS> snake(epilogue.snake, column);
        for_all([&](int64_t row, int v, Vector x) { store_at(out, row, v, snake(x, v)); });
    } else if (epilogue.activation == Activation::gelu) {
        for_all([=](int64_t row, int v, Vector x) { store_at(out, row, v, gelu(x)); });
    } else {
        for_all([=](int64_t row, int v, Vector x) { store_at(out, row, v, x); });
    }
}

template <int VECTORS>
inline void finish(const Conv& conv, const Epilogue& epilogue, int64_t begin, int64_t end,
                   int64_t column, const float* sums, int64_t stride) {
    if (column + VECTORS * LANES <= conv.num_out)
        finish_columns<VECTORS, true>(conv, epilogue, begin, end, column, sums, stride);
    else
        finish_columns<VECTORS, false>(conv, epilogue, begin, end, column, sums, stride);
}

// One pass over some taps and channels of a panel.
struct Part {
    int64_t num_taps, tap_stride;  // from a tap's row to the next one's
    int64_t depth, row_stride;     // channels
    bool is_first;                 // of the sums
};

// sums [ROWS, VECTORS * LANES] += x [taps, ROWS, depth] * weight [taps, depth, VECTORS * LANES].
// Weights are float32, or float16 in uint16_t.
template <int ROWS, int VECTORS, class Number>
inline void multiply(const Part& part, const float* x, const Number* weight, float* sums) {
    const int64_t stride = part.row_stride;
    Vector sum[ROWS][VECTORS] = {};
    if (!part.is_first)
        UNROLL for (int row = 0; row < ROWS; ++row)
            UNROLL for (int v = 0; v < VECTORS; ++v) sum[row][v] = load(sums + (row * VECTORS + v) * LANES);
    for (int64_t tap = 0; tap < part.num_taps; ++tap, x += part.tap_stride)
        for (int64_t i = 0; i < part.depth; ++i, weight += VECTORS * LANES) {
            Vector columns[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; ++v) columns[v] = load(weight + v * LANES);
            UNROLL for (int row = 0; row < ROWS; ++row) {
                const float each = x[row * stride + i];
                UNROLL for (int v = 0; v < VECTORS; ++v) sum[row][v] = fma(each, columns[v], sum[row][v]);
#if defined(__aarch64__)
                // Otherwise GCC loads the inputs of all rows first, and has no registers left.
                asm volatile("" ::: "memory");
#endif
            }
        }
    UNROLL for (int row = 0; row < ROWS; ++row)
        UNROLL for (int v = 0; v < VECTORS; ++v) store(sums + (row * VECTORS + v) * LANES, sum[row][v]);
}

template <int ROWS, int VECTORS, class Number>
inline void multiply_rows(const Part& part, const float* x, const Number* weight, int64_t num_rows,
                          float* sums) {
    int64_t row = 0;
    for (; row + ROWS <= num_rows; row += ROWS)
        multiply<ROWS, VECTORS>(part, x + row * part.row_stride, weight,
                                sums + row * VECTORS * LANES);
    if constexpr (ROWS > 1)
        if (row < num_rows)
            multiply_rows<ROWS / 2, VECTORS>(part, x + row * part.row_stride, weight,
                                             num_rows - row, sums + row * VECTORS * LANES);
}

template <int VECTORS, class Number>
void convolve_panel(const Conv& conv, const Number* weight, const float* x, int64_t begin,
                    int64_t end, int64_t panel, const Epilogue& epilogue, float* sums) {
    const int64_t first = conv.panel_starts[panel], width = VECTORS * LANES;
    weight += first * LANES * conv.num_taps * conv.num_in;
    // Several whole taps, or a part of the channels of one tap.
    const int64_t max_taps = std::max<int64_t>(1, MAX_DEPTH / conv.num_in);
    Part part{0, conv.dilation * conv.num_in, 0, conv.num_in, true};
    for (int64_t tap = 0; tap < conv.num_taps; tap += max_taps) {
        const float* rows = x + (begin + tap * conv.dilation) * conv.num_in;
        part.num_taps = std::min(max_taps, conv.num_taps - tap);
        for (int64_t at = 0; at < conv.num_in; at += MAX_DEPTH) {
            part.depth = std::min(MAX_DEPTH, conv.num_in - at);
            multiply_rows<TILE_ROWS, VECTORS>(part, rows + at, weight, end - begin, sums);
            weight += part.num_taps * part.depth * width;
            part.is_first = false;
        }
    }
    for (int v = 0; v < VECTORS; ++v)
        finish<1>(conv, epilogue, begin, end, (first + v) * LANES, sums + v * LANES, width);
}

template <class Number>
void convolve_with(const Conv& conv, const Number* weight, const float* x, int64_t begin,
                   int64_t end, int64_t panel, const Epilogue& epilogue, float* sums) {
    switch (conv.panel_starts[panel + 1] - conv.panel_starts[panel]) {
        case 1: return convolve_panel<1>(conv, weight, x, begin, end, panel, epilogue, sums);
        case 2: return convolve_panel<2>(conv, weight, x, begin, end, panel, epilogue, sums);
        default: return convolve_panel<3>(conv, weight, x, begin, end, panel, epilogue, sums);
    }
}

void convolve(const Conv& conv, const Rows& rows, int64_t begin, int64_t end, int64_t panel,
              const Epilogue& epilogue, float* sums) {
    const float* x = rows.full;
    if constexpr (CAN_LOAD_HALF)
        if (!conv.half.empty())
            return convolve_with(conv, conv.half.data(), x, begin, end, panel, epilogue, sums);
    convolve_with(conv, conv.weight.data(), x, begin, end, panel, epilogue, sums);
}

inline float dot(const float* x, const float* y, int64_t size) {
    Vector sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int part = 0; part < 4; ++part)
            sums[part] = fma(load(x + i + part * LANES), load(y + i + part * LANES), sums[part]);
    for (; i < size; i += LANES) sums[0] = fma(load(x + i, size - i), load(y + i, size - i), sums[0]);
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void convolve_to_one(const Conv& conv, const float* x, int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {  // the taps are consecutive rows
        const float sample =
            dot(x + row * conv.num_in, conv.weight.data(), conv.num_taps * conv.num_in) + conv.bias[0];
        out[row] = sample < -1.0f ? -1.0f : sample > 1.0f ? 1.0f : sample;  // NaN stays NaN
    }
}

inline float sum_of(const float* x, int64_t size) {
    Vector sums{};
    for (int64_t i = 0; i < size; i += LANES) sums += load(x + i, size - i);
    return sum(sums);
}

void depthwise_norm(const float* x, int64_t num_channels, int64_t num_taps, const float* weight,
                    const float* bias, const float* norm_weight, const float* norm_bias, float eps,
                    float* out) {
    for (int64_t i = 0; i < num_channels; i += LANES) {
        const int64_t count = num_channels - i;
        Vector value = load(bias + i, count);
        for (int64_t tap = 0; tap < num_taps; ++tap)
            value = fma(load(x + tap * num_channels + i, count),
                        load(weight + tap * num_channels + i, count), value);
        store(out + i, value, count);
    }
    const float mean = sum_of(out, num_channels) / static_cast<float>(num_channels);
    Vector squares{};
    for (int64_t i = 0; i < num_channels; i += LANES) {
        const int64_t count = num_channels - i;
        const Vector distance = load(out + i, count) - mean;
        store(out + i, distance, count);
        const Vector kept = load(out + i, count);  // lanes beyond the end are zero
        squares = fma(kept, kept, squares);
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(num_channels) + eps);
    for (int64_t i = 0; i < num_channels; i += LANES) {
        const int64_t count = num_channels - i;
        const Vector normal = load(out + i, count) * scale;
        store(out + i, fma(normal, load(norm_weight + i, count), load(norm_bias + i, count)), count);
    }
}

void snake(const float* x, int64_t size, float frequency, float gain, float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const Vector value = load(x + i, size - i);
        store(out + i, fma(sine_squared(value * frequency), splat(gain), value), size - i);
    }
}

void rms_norm(const float* x, int64_t size, const float* weight, float eps, float* out) {
    const float scale = 1.0f / std::sqrt(dot(x, x, size) / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < size; i += LANES)
        store(out + i, load(x + i, size - i) * scale * load(weight + i, size - i), size - i);
}

void gate(const float* gate_up, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += LANES) {
        const Vector x = load(gate_up + i, size - i), up = load(gate_up + size + i, size - i);
        store(out + i, x / (1.0f + exponential(-x)) * up, size - i);
    }
}

void attend(const Attention& attention, const float* query, int64_t head, int64_t position,
            float* scores, float* out) {
    const int64_t size = attention.head_dim, width = attention.num_kv_heads * size;
    const int64_t shared = attention.num_heads / attention.num_kv_heads;
    const float* keys = attention.keys + head / shared * size;
    const int64_t first = position < attention.window ? 0 : position - attention.window + 1;
    const int64_t count = position - first + 1;
    const float factor = 1.0f / std::sqrt(static_cast<float>(size));
    float largest = -INFINITY;
    for (int64_t i = 0; i < count; ++i) {
        const float* key = keys + (first + i) % attention.capacity * 2 * width;
        scores[i] = dot(query, key, size) * factor;
        if (!(scores[i] <= largest)) largest = scores[i];
    }
    Vector total{};
    for (int64_t i = 0; i < count; i += LANES) {
        const Vector weight = exponential(load(scores + i, count - i) - largest);
        store(scores + i, weight, count - i);
        total += load(scores + i, count - i);
    }
    const float scale = 1.0f / sum(total);
    for (int64_t i = 0; i < size; i += LANES) {
        Vector mixed{};
        for (int64_t j = 0; j < count; ++j) {
            const float* key = keys + (first + j) % attention.capacity * 2 * width;
            mixed = fma(scores[j], load(key + width + i, size - i), mixed);
        }
        store(out + i, mixed * scale, size - i);
    }
}

bool narrow(const float* x, int64_t size, bool may_change, uint16_t* out) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const Vector number = load(x + i);
        store(out + i, number);
        if (!may_change && !is_equal(load(out + i), number)) return false;
    }
    for (; i < size; ++i) {
        out[i] = vivace::to_half(x[i]);
        if (!may_change && vivace::from_half(out[i]) != x[i]) return false;
    }
    return true;
}

constexpr Kernels make_kernels(const char* name) {
    return {name,     LANES,           MAX_VECTORS, CAN_LOAD_HALF ? narrow : nullptr,
            {},       {},              convolve,    convolve_to_one,
            depthwise_norm, snake,     rms_norm,    gate,
            attend};
}

}  // namespace
