// Parts that the kernels for Hopper GPUs share: barriers in shared memory, and products of warpgroups (wgmma).
// wgmma_source.py puts this text before a kernel's source.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

constexpr u32 MAX_POLLS = 1u << 24;

// -- barriers -----------------------------------------------------------------------------------------

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEVICE void init_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEVICE void expect_bytes(u32 barrier, u32 num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}
DEVICE void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// A barrier that never completes becomes an error of the launch instead of a hang.
DEVICE void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred done, late; .reg .u32 polls;\n"
        "mov.u32 polls, 0;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "add.u32 polls, polls, 1;\n"
        "setp.eq.u32 late, polls, %2;\n"
        "@!late bra again;\n"
        "trap;\n"
        "ready: }" ::"r"(barrier), "r"(parity), "n"(MAX_POLLS) : "memory");
}

// -- tiles --------------------------------------------------------------------------------------------

struct alignas(64) TensorMap { u64 words[16]; };

constexpr int DEPTH = 64;                   // numbers along k of one step
constexpr u32 ROW = 2 * DEPTH;              // bytes

// `to` has rows of 128 bytes, swizzled.
DEVICE void copy_tile(u32 to, const TensorMap& map, int k, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(k), "r"(row), "r"(barrier) : "memory");
}

// -- products -----------------------------------------------------------------------------------------

DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// 16 numbers of the rows from `address` on; rows of 128 bytes in groups of eight, swizzled.
DEVICE u64 operand(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

template <int COUNT>
DEVICE void clear(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = 0.0f;
}

// 64 rows times N columns times 16 numbers; the rows are in registers or, like the columns, in shared memory.
template <int N>
DEVICE void wgmma(float (&sums)[N / 2], const u32* a, u64 b);
template <int N>
DEVICE void wgmma(float (&sums)[N / 2], u64 a, u64 b);
// -- PRODUCTS OF THE HOST --

