// Numbers and operands that the kernels of the codec's layers for Hopper GPUs share. Follows wgmma.cuh.

constexpr float TO_INTEGER = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer

// -- numbers -----------------------------------------------------------------------------------------

DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE float2 unpack(u32 both) {
    float2 value;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(value.x), "=f"(value.y) : "r"(both));
    return value;
}

// `_snake` of kernels.py, operation by operation.
DEVICE float snake(float x, float frequency, float inverse_gain) {
    float r = fmaf(x, frequency, __fsub_rn(TO_INTEGER, fmaf(x, frequency, TO_INTEGER)));
    float square = __fmul_rn(r, r);
    float p = fmaf(0.07722016f, square, -0.59804517f);
    p = fmaf(p, square, 2.5500314f);
    p = fmaf(p, square, -5.167707f);
    p = fmaf(p, square, 3.1415925f);
    float wave = __fmul_rn(p, r);
    return fmaf(inverse_gain, __fmul_rn(wave, wave), x);
}

// -- results ------------------------------------------------------------------------------------------

struct Columns {                            // of one layer's output
    const float *bias, *frequency, *inverse_gain;

    DEVICE Columns from(int column) const { return {bias + column, frequency + column, inverse_gain + column}; }
};

struct Rows {                               // [streams, time, columns]
    const u16* residual;                    // may be null
    u16 *out, *active;                      // before and after the activation; `out` may be null
    int num_streams, length, num_columns;
    int active_stride;                      // numbers from one stream of `active` to the next
};

DEVICE void load8(float (&to)[8], const float* from) {
    float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

DEVICE uint4 pack8(const float (&y)[8]) {
    return make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
}

// A thread's part of 64 rows: rows `row` and `row + 8`, and eight neighbouring columns of every 32 from `column` on.
struct Place {
    int at[2], active[2];                   // elements of its first columns; in `active`
    bool is_row[2];

    // Rows are `span` times of a stream, then as many of the next stream.
    DEVICE Place(const Rows& rows, int stream, int time, int span, int row, int column) {
#pragma unroll
        for (int later = 0; later < 2; later++) {
            const int m = row + 8 * later, s = stream + m / span, t = time + m % span;
            const int n = t * rows.num_columns + column + 8 * (threadIdx.x % 4);
            is_row[later] = s < rows.num_streams && t < rows.length;
            at[later] = s * rows.length * rows.num_columns + n;
            active[later] = s * rows.active_stride + n;
        }
    }
};

// Into the L2 cache.
template <int COLUMNS>
DEVICE void prefetch_residual(const Rows& rows, const Place& place) {
    const int line = threadIdx.x % 4;       // of 64 numbers; the thread's first column is 8 * line
#pragma unroll
    for (int later = 0; later < 2; later++)
        if (line < (COLUMNS + 63) / 64 && place.is_row[later])
            asm volatile("prefetch.global.L2 [%0];" ::"l"(rows.residual + place.at[later] - 8 * line + 64 * line));
}

// Residuals of columns 32 * FIRST to 32 * (FIRST + COUNT).
template <int FIRST, int COUNT>
DEVICE void load_residual(uint4 (&residual)[COUNT][2], const Rows& rows, const Place& place) {
#pragma unroll
    for (int q = 0; q < COUNT; q++)
#pragma unroll
        for (int later = 0; later < 2; later++) {
            residual[q][later] = make_uint4(0, 0, 0, 0);
            if (rows.residual && place.is_row[later])
                residual[q][later] = __ldg((const uint4*)(rows.residual + place.at[later] + 32 * (FIRST + q)));
        }
}

// Adds bias and residual to the sums of these columns, and stores them before and after the activation. The products'
// columns are in the order of `column_order`; `columns` begins with the first one of the tile.
template <int FIRST, int COUNT>
DEVICE void store(const float* sums, const uint4 (&residual)[COUNT][2], const Rows& rows, const Place& place, const Columns& columns) {
#pragma unroll
    for (int q = FIRST; q < FIRST + COUNT; q++) {
        const int n = 32 * q + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int later = 0; later < 2; later++) {
            if (!place.is_row[later]) continue;
            const uint4 given = residual[q - FIRST][later];
            const u32 words[4] = {given.x, given.y, given.z, given.w};
            float y[8], parameters[8], gain[8];
            load8(parameters, columns.bias + n);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 pair = unpack(words[i / 2]);
                y[i] = sums[16 * q + 4 * (i / 2) + 2 * later + i % 2] + parameters[i] + (i % 2 ? pair.y : pair.x);
            }
            if (rows.out) *(uint4*)(rows.out + place.at[later] + 32 * q) = pack8(y);
            load8(parameters, columns.frequency + n);
            load8(gain, columns.inverse_gain + n);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = snake(y[i], parameters[i], gain[i]);
            *(uint4*)(rows.active + place.active[later] + 32 * q) = pack8(y);
        }
    }
}

// `store` for all columns from FIRST on, whose residuals are loaded when they are needed: registers are scarce.
template <int COLUMNS, int FIRST = 0>
DEVICE void store_tile(const float (&sums)[COLUMNS / 2], const Rows& rows, const Place& place, const Columns& columns) {
    if constexpr (FIRST < COLUMNS / 32) {
        uint4 residual[1][2];
        load_residual<FIRST>(residual, rows, place);
        store<FIRST>(sums, residual, rows, place, columns);
        store_tile<COLUMNS, FIRST + 1>(sums, rows, place, columns);
    }
}

// The activated numbers of 64 rows and COUNT groups of eight columns, in the registers of a product's first operand.
// `columns` begins with the first one.
template <int COUNT>
DEVICE void hide(u32* hidden, const float* sums, const Columns& columns) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int n = 8 * j + 2 * (threadIdx.x % 4);
        const float2 bias = *(const float2*)(columns.bias + n), frequency = *(const float2*)(columns.frequency + n);
        const float2 gain = *(const float2*)(columns.inverse_gain + n);
#pragma unroll
        for (int later = 0; later < 2; later++)
            hidden[2 * j + later] = pack(snake(sums[4 * j + 2 * later] + bias.x, frequency.x, gain.x),
                                         snake(sums[4 * j + 2 * later + 1] + bias.y, frequency.y, gain.y));
        if (j % 4 == 3) asm volatile("" ::: "memory");  // the compiler would load all parameters at once
    }
}

