// Matrix products of many rows for Hopper GPUs: tile copies (TMA) and products of warpgroups (wgmma), bfloat16 with
// float32 sums. Also the norm after a residual product.
//
// Every output is summed along k, 16 numbers at a time, like the Triton kernels of product_kernels.py do: results do
// not depend on which kernel computes a product.
//
// A product is gated, silu(x W) * (x U) with U after W, or split: the partial sums of split_linear_kernel, as many as the
// grid is deep.
//
// One warp copies tiles into a ring buffer in shared memory, one warpgroup per 64 rows multiplies. Weights do not
// depend on the previous kernel, so their first tiles are copied before it ends.
//
// Follows wgmma.cuh. product_wgmma.py inserts the kernels.

// -- arguments ----------------------------------------------------------------------------------------

struct Product {                            // ProductArguments of product_wgmma.py
    TensorMap x, weight;
    void* out;                              // gated: bfloat16 [rows, columns]; else float32 [parts, rows, columns]
    int num_rows, num_columns, num_steps;
};

struct Norm {                               // NormArguments of product_wgmma.py
    const float* parts;                     // [4, rows, size]
    const u16 *residual, *weight;
    u16 *out, *normed;
    int num_rows;
    float eps;
};

// -- shared memory ------------------------------------------------------------------------------------

extern __shared__ u8 shared[];

DEVICE void prefetch_tile(const TensorMap& map, int k, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(k), "r"(row) : "memory");
}
// See wait_for_last of product_kernels.py.
DEVICE void wait_for_last() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// -- numbers ------------------------------------------------------------------------------------------

DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE float rounded(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return __uint_as_float((u32)bits << 16);
}
// `_silu` of product_kernels.py, operation by operation.
DEVICE float gated(float gate, float up) {
    float x = rounded(gate), power, y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(0.0f - x, 1.4426950408889634f)));
    asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(__fadd_rn(power, 1.0f)));
    return __fmul_rn(rounded(y), rounded(up));
}

template <int ROWS, int COLUMNS, bool IS_GATED, int STAGES>
struct Sizes {
    static constexpr int WIDE = COLUMNS * (IS_GATED ? 2 : 1);
    static constexpr int GROUPS = ROWS / 64;
    static constexpr u32 X_BYTES = ROWS * ROW, STAGE = X_BYTES + WIDE * ROW;
    static constexpr u32 BARRIERS = STAGES * STAGE;
    static constexpr u32 BYTES = BARRIERS + 2 * STAGES * 8 + 1024;  // and the alignment
    static constexpr int THREADS = GROUPS * 128 + 32;
};

// A thread has two neighbouring columns of every eight, in rows `m` and `m + 8`.
template <int COLUMNS>
DEVICE void store_parts(const float (&sums)[COLUMNS / 2], const Product& request, int part, int m, int column) {
    const int n = column + 2 * (threadIdx.x % 4);
    float* out = (float*)request.out + (s64)part * request.num_rows * request.num_columns;
#pragma unroll
    for (int later = 0; later < 2; later++) {
        if (m + 8 * later >= request.num_rows) continue;
        float* row = out + (s64)(m + 8 * later) * request.num_columns + n;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) *(float2*)(row + 8 * j) = make_float2(sums[4 * j + 2 * later], sums[4 * j + 2 * later + 1]);
    }
}

// Four threads have two columns of each of four groups of eight columns; gives each thread one group.
DEVICE void transpose(u32 (&words)[4]) {
    const bool is_odd = threadIdx.x & 1, is_upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 given = __shfl_xor_sync(~0u, is_odd ? words[i] : words[i + 1], 1);
        words[i] = is_odd ? given : words[i], words[i + 1] = is_odd ? words[i + 1] : given;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 given = __shfl_xor_sync(~0u, is_upper ? words[i] : words[i + 2], 2);
        words[i] = is_upper ? given : words[i], words[i + 2] = is_upper ? words[i + 2] : given;
    }
}

template <int COLUMNS>
DEVICE void store_gated(const float (&sums)[COLUMNS], const Product& request, int m, int column) {
    const int place = threadIdx.x % 4;
#pragma unroll
    for (int later = 0; later < 2; later++) {
        const bool is_row = m + 8 * later < request.num_rows;
        u16* row = (u16*)request.out + (s64)(m + 8 * later) * request.num_columns + column;
        u32 words[COLUMNS / 8];
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            const float* gate = sums + 4 * j + 2 * later;
            words[j] = pack(gated(gate[0], gate[COLUMNS / 2]), gated(gate[1], gate[COLUMNS / 2 + 1]));
        }
#pragma unroll
        for (int j = 0; j + 4 <= COLUMNS / 8; j += 4) {
            u32 group[4] = {words[j], words[j + 1], words[j + 2], words[j + 3]};
            transpose(group);
            if (is_row) *(uint4*)(row + 8 * (j + place)) = make_uint4(group[0], group[1], group[2], group[3]);
        }
#pragma unroll
        for (int j = COLUMNS / 32 * 4; j < COLUMNS / 8; j++)
            if (is_row) *(u32*)(row + 8 * j + 2 * place) = words[j];
    }
}

template <int ROWS, int COLUMNS, bool IS_GATED, int STAGES>
DEVICE void product(const Product& request) {
    using Size = Sizes<ROWS, COLUMNS, IS_GATED, STAGES>;
    constexpr int WIDE = Size::WIDE;
    const u32 base = (shared_address(shared) + 1023) / 1024 * 1024;
    const u32 full = base + Size::BARRIERS, empty = full + 8 * STAGES;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int column = blockIdx.x * COLUMNS, row = blockIdx.y * ROWS, part = blockIdx.z;
    const int first = part * DEPTH, stride = gridDim.z * DEPTH;
    const int num_steps = request.num_steps;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.weight) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&request.x) : "memory");
        for (int i = 0; i < STAGES; i++) init_barrier(full + 8 * i, 1), init_barrier(empty + 8 * i, 4 * Size::GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 4 * Size::GROUPS) {
        if (lane) return;
        auto copy_weight = [&](int i) {
            const u32 at = base + i % STAGES * Size::STAGE + Size::X_BYTES, barrier = full + i % STAGES * 8;
            expect_bytes(barrier, Size::STAGE);
            copy_tile(at, request.weight, first + i * stride, column, barrier);
            if (IS_GATED) copy_tile(at + COLUMNS * ROW, request.weight, first + i * stride, request.num_columns + column, barrier);
        };
        auto copy_rows = [&](int i) {
            copy_tile(base + i % STAGES * Size::STAGE, request.x, first + i * stride, row, full + i % STAGES * 8);
        };
        const int ahead = min(STAGES, num_steps);
        for (int i = 0; i < ahead; i++) copy_weight(i);
        for (int i = ahead; i < num_steps; i++) {
            prefetch_tile(request.weight, first + i * stride, column);
            if (IS_GATED) prefetch_tile(request.weight, first + i * stride, request.num_columns + column);
        }
        wait_for_last();
        for (int i = 0; i < ahead; i++) copy_rows(i);
        for (int i = ahead; i < num_steps; i++) {
            wait(empty + 8 * (i % STAGES), (i / STAGES - 1) & 1);
            copy_weight(i);
            copy_rows(i);
        }
        return;
    }
    const int group = warp / 4;
    float sums[WIDE / 2];
#pragma unroll
    for (int i = 0; i < WIDE / 2; i++) sums[i] = 0.0f;
    wait_for_last();
#pragma unroll 1
    for (int i = 0; i < num_steps; i++) {
        const u32 at = base + i % STAGES * Size::STAGE;
        wait(full + 8 * (i % STAGES), i / STAGES & 1);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<WIDE>(sums, operand(at + group * 64 * ROW + k * 32), operand(at + Size::X_BYTES + k * 32));
        commit_products();
        wait_products<1>();
        if (i && i - 1 + STAGES < num_steps && lane == 0) arrive(empty + 8 * ((i - 1) % STAGES));
    }
    wait_products<0>();
    const int m = row + group * 64 + warp % 4 * 16 + lane / 4;
    if constexpr (IS_GATED) store_gated<COLUMNS>(sums, request, m, column);
    else store_parts<COLUMNS>(sums, request, part, m, column);
}

#define PRODUCT(NAME, ROWS, COLUMNS, IS_GATED, STAGES)                                              \
    extern "C" __global__ void __launch_bounds__(Sizes<ROWS, COLUMNS, IS_GATED, STAGES>::THREADS)   \
        NAME(const __grid_constant__ Product request) {                                             \
        product<ROWS, COLUMNS, IS_GATED, STAGES>(request);                                          \
    }

// -- norms --------------------------------------------------------------------------------------------

constexpr int NORM_THREADS = 128, CHUNK = 8 * NORM_THREADS;

// The residual rows plus the sum of a product's parts, and their norm; one block per row. The squares are summed in
// the order of Triton's reduction in `_row_scale` of product_kernels.py.
template <int CHUNKS>
DEVICE void normalise(const Norm& request) {
    __shared__ float sums[4];
    constexpr int SIZE = CHUNKS * CHUNK;
    const s64 at = (s64)blockIdx.x * SIZE + 8 * threadIdx.x, step = (s64)request.num_rows * SIZE;
    uint4 before[CHUNKS], weight[CHUNKS];
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // early, for a product's weights
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        before[c] = *(const uint4*)(request.residual + at + c * CHUNK);
        weight[c] = *(const uint4*)(request.weight + 8 * threadIdx.x + c * CHUNK);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    float4 parts[CHUNKS][4][2];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int h = 0; h < 2; h++) parts[c][p][h] = __ldcg((const float4*)(request.parts + at + p * step + c * CHUNK) + h);
    u32 rows[CHUNKS][4];
    float total = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const u32 given[4] = {before[c].x, before[c].y, before[c].z, before[c].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* p[4];
#pragma unroll
            for (int k = 0; k < 4; k++) p[k] = (const float*)&parts[c][k][i / 2] + i % 2 * 2;
            const u32 sum = pack((p[0][0] + p[1][0]) + (p[2][0] + p[3][0]), (p[0][1] + p[1][1]) + (p[2][1] + p[3][1]));
            rows[c][i] = pack(low(given[i]) + low(sum), high(given[i]) + high(sum));
            const float first = low(rows[c][i]), second = high(rows[c][i]);
            if (c == 0 && i == 0) total = fmaf(first, first, __fmul_rn(second, second));
            else total = fmaf(second, second, fmaf(first, first, total));
        }
        *(uint4*)(request.out + at + c * CHUNK) = make_uint4(rows[c][0], rows[c][1], rows[c][2], rows[c][3]);
    }
#pragma unroll
    for (int reach = 16; reach; reach /= 2) total += __shfl_xor_sync(~0u, total, reach);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    float scale;
    asm("div.full.f32 %0, %1, %2;" : "=f"(scale) : "f"(total), "f"((float)SIZE));
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(__fadd_rn(scale, request.eps)));
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const u32 factors[4] = {weight[c].x, weight[c].y, weight[c].z, weight[c].w};
        u32 normed[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 unit = pack(__fmul_rn(low(rows[c][i]), scale), __fmul_rn(high(rows[c][i]), scale));
            normed[i] = pack(__fmul_rn(low(unit), low(factors[i])), __fmul_rn(high(unit), high(factors[i])));
        }
        *(uint4*)(request.normed + at + c * CHUNK) = make_uint4(normed[0], normed[1], normed[2], normed[3]);
    }
}
#define NORM(NAME, CHUNKS)                                                                          \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS) NAME(const __grid_constant__ Norm request) { \
        normalise<CHUNKS>(request);                                                                 \
    }

// -- KERNELS OF THE HOST --
