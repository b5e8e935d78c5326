// What the kernels share: numbers, the ring of weights, and the exchange of activations.
//
// One block runs on every multiprocessor. Eight warps compute; a ninth fetches weights into a ring of
// chunks in shared memory, in an order that is known beforehand, so that memory never waits for a stage
// to end. What a stage computes is published word by word: a bfloat16 number and the tag of its stage in
// 32 bits. Whoever needs it reads until every tag is right, so there is no barrier over the grid.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

constexpr int WARPS = 8;                    // that compute
constexpr int COMPUTING = 32 * WARPS;       // threads
constexpr int THREADS = COMPUTING + 32;     // and the warp that fetches
constexpr int ROWS = 8;                     // weight rows of a unit: the n of one MMA
constexpr int DEPTH = 512;                  // numbers of a weight row in one chunk
constexpr int ROW_BYTES = 2 * DEPTH + 16;   // padded, so that eight rows fall into different banks
constexpr int CHUNK_BYTES = ROWS * ROW_BYTES;
constexpr int PARTS = 4;                    // sums of a residual product
constexpr int MAX_BATCH = 8;
constexpr u32 PATIENCE = 1u << 22;          // polls before a block gives up

#if __CUDA_ARCH__ >= 900
constexpr u32 FULL_ARRIVALS = 1;            // one thread announces the bytes of a bulk copy
#else
constexpr u32 FULL_ARRIVALS = 32;           // every lane that copies
#endif
constexpr u32 EMPTY_ARRIVALS = 4;

// -- numbers -----------------------------------------------------------------------------------------

DEVICE float wide(u32 bits) { return __uint_as_float(bits << 16); }

DEVICE u32 narrow(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float rounded(float value) { return wide(narrow(value)); }

DEVICE float divide_full(float a, float b) {
    float out;
    asm("div.full.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

DEVICE float exponential(float x) {
    float out;
    asm("ex2.approx.f32 %0, %1;" : "=f"(out) : "f"(__fmul_rn(x, 1.44269502f)));
    return out;
}

DEVICE float rsqrt_approximate(float x) {
    float out;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

// A normalised number times its weight, with the reference's two roundings.
DEVICE u32 scaled(float x, float scale, u32 weight) {
    return narrow(__fmul_rn(rounded(__fmul_rn(x, scale)), wide(weight)));
}

DEVICE u32 pack(u32 low, u32 high) { return (low & 0xffffu) | (high << 16); }

// -- shared memory and barriers of a block ----------------------------------------------------------------

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEVICE void sync_threads(int barrier, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void sync_computing() { sync_threads(1, COMPUTING); }

DEVICE void load_matrices(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address) : "memory");
}

DEVICE void load_transposed(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address) : "memory");
}

DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// -- the ring of weights -----------------------------------------------------------------------------

DEVICE void barrier_init(u32 address, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
}

DEVICE void barrier_arrive(u32 address) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address) : "memory");
}

DEVICE void barrier_wait(u32 address, u32 parity) {
    u32 is_done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_done) : "r"(address), "r"(parity) : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_done) : "r"(address), "r"(parity) : "memory");
#endif
    } while (!is_done);
}

struct Ring {
    u32 chunks;      // shared address of the first slot
    u32 full;        // of the first slot's barriers
    u32 empty;
    u32 num_slots;
    u32 position;    // chunks before the present stage

    DEVICE_MEMBER u32 wait(u32 index) const {
        const u32 at = position + index, slot = at % num_slots;
        barrier_wait(full + 8 * slot, (at / num_slots) & 1);
        return slot;
    }

    DEVICE_MEMBER u32 address(u32 slot) const { return chunks + slot * CHUNK_BYTES; }

    // Called by whole warps: EMPTY_ARRIVALS lanes of all of a slot's readers together.
    DEVICE_MEMBER void release(u32 slot, u32 lane, u32 arrivals) const {
        __syncwarp();
        if (lane < arrivals) barrier_arrive(empty + 8 * slot);
    }

    // For the warp that fetches: eight rows of DEPTH numbers, `pitch` numbers apart.
    DEVICE_MEMBER void fetch(const u16* weight, u64 pitch, u32 lane, u64 policy) {
        const u32 slot = position % num_slots, turn = position / num_slots;
        if (turn > 0) barrier_wait(empty + 8 * slot, (turn - 1) & 1);
        const u32 target = address(slot), ready = full + 8 * slot;
#if __CUDA_ARCH__ >= 900
        if (lane == 0)
            asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }"
                         ::"r"(ready), "r"(ROWS * DEPTH * 2) : "memory");
        __syncwarp();
        if (lane < ROWS)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                         "[%0], [%1], %2, [%3], %4;"
                         ::"r"(target + lane * ROW_BYTES), "l"(weight + lane * pitch), "r"(2 * DEPTH),
                           "r"(ready), "l"(policy) : "memory");
#else
        for (u32 piece = lane; piece < ROWS * DEPTH / 8; piece += 32) {
            const u32 row = piece / (DEPTH / 8), within = piece % (DEPTH / 8);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(target + row * ROW_BYTES + 16 * within), "l"(weight + row * pitch + 8 * within)
                         : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ready) : "memory");
#endif
        ++position;
    }
};

// Weights that are read again before the cache forgets them, or never again.
DEVICE u64 keep_policy() {
    u64 policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

DEVICE u64 stream_policy() {
    u64 policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// -- the exchange of activations ---------------------------------------------------------------------

DEVICE uint4 peek(const u32* at) {
    uint4 words;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(at) : "memory");
    return words;
}

DEVICE void publish(u32* at, u32 bits, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits | tag << 16) : "memory");
}

DEVICE void publish_pair(u32* at, u32 first, u32 second, u32 tag) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};"
                 ::"l"(at), "r"(first | tag << 16), "r"(second | tag << 16) : "memory");
}

DEVICE bool is_tagged(uint4 words, u32 tag) {
    return (words.x >> 16) == tag && (words.y >> 16) == tag && (words.z >> 16) == tag && (words.w >> 16) == tag;
}

// Reads V groups of four words, `step` words apart, until all are tagged; `lost` ends every wait.
template <int V>
DEVICE void take(uint4 (&out)[V], const u32* at, u32 step, u32 tag, volatile u32* lost) {
    for (u32 polls = 0;; ++polls) {
        bool is_there = true;
#pragma unroll
        for (int v = 0; v < V; ++v) out[v] = peek(at + v * step);
#pragma unroll
        for (int v = 0; v < V; ++v) is_there &= is_tagged(out[v], tag);
        if (is_there || *lost) return;
        if (polls == PATIENCE) *lost = 1;
    }
}

// -- products ----------------------------------------------------------------------------------------

// Activations in shared memory: a row of `pitch` bytes for each slot of the batch.
struct Rows {
    u8* base;
    u32 pitch;

    DEVICE_MEMBER u8* row(u32 slot) const { return base + slot * pitch; }

    // Where a lane reads for `load_matrices`; rows past the batch repeat its last one.
    DEVICE_MEMBER u32 lane_address(u32 lane, u32 batch) const {
        const u32 row = lane & 7;
        return shared_address(base) + (row < batch ? row : batch - 1) * pitch + (lane >> 3) * 16;
    }
};

DEVICE u32 units_here(u32 units) {
    return blockIdx.x < units ? (units - 1 - blockIdx.x) / gridDim.x + 1 : 0;
}

// 32 numbers of the depth: two steps of the sum.
DEVICE void add_product(float (&c)[4], const u32 (&a)[4], u32 weights) {
    u32 b[4];
    load_matrices(b, weights);
    multiply(c, a[0], 0, a[1], 0, b[0], b[1]);
    multiply(c, a[2], 0, a[3], 0, b[2], b[3]);
}

// One unit's sums in the order of the depth. Slot lane / 4, columns 2 (lane % 4) and the next in c[0], c[1].
template <int K>
DEVICE void multiply_unit(float (&c)[4], const Ring& ring, u32 first, u32 rows, u32 lane) {
#pragma unroll 1
    for (u32 part = 0; part < K / DEPTH; ++part) {
        const u32 slot = ring.wait(first + part);
        const u32 weights = ring.address(slot) + (lane & 7) * ROW_BYTES + (lane >> 3) * 16;
#pragma unroll
        for (u32 i = 0; i < DEPTH / 32; ++i) {
            u32 a[4];
            load_matrices(a, rows + part * DEPTH * 2 + i * 64);
            add_product(c, a, weights + i * 64);
        }
        ring.release(slot, lane, EMPTY_ARRIVALS);
    }
}

// The same for a unit of gates and one of the values they open, whose chunks alternate.
template <int K>
DEVICE void multiply_gated(float (&gate)[4], float (&up)[4], const Ring& ring, u32 first, u32 rows, u32 lane) {
    const u32 offset = (lane & 7) * ROW_BYTES + (lane >> 3) * 16;
#pragma unroll 1
    for (u32 part = 0; part < K / DEPTH; ++part) {
        const u32 gate_slot = ring.wait(first + 2 * part), up_slot = ring.wait(first + 2 * part + 1);
        const u32 gate_at = ring.address(gate_slot) + offset, up_at = ring.address(up_slot) + offset;
#pragma unroll
        for (u32 i = 0; i < DEPTH / 32; ++i) {
            u32 a[4];
            load_matrices(a, rows + part * DEPTH * 2 + i * 64);
            add_product(gate, a, gate_at + i * 64);
            add_product(up, a, up_at + i * 64);
        }
        ring.release(gate_slot, lane, EMPTY_ARRIVALS);
        ring.release(up_slot, lane, EMPTY_ARRIVALS);
    }
}

// One of four sums of a residual product: 64 numbers out of every 256.
template <int K>
DEVICE void multiply_part(float (&c)[4], const Ring& ring, u32 first, u32 rows, u32 lane, u32 part) {
#pragma unroll 1
    for (u32 chunk = 0; chunk < K / DEPTH; ++chunk) {
        const u32 slot = ring.wait(first + chunk);
        const u32 weights = ring.address(slot) + (lane & 7) * ROW_BYTES + (lane >> 3) * 16;
#pragma unroll
        for (u32 i = 0; i < DEPTH / 32 / PARTS; ++i) {
            const u32 at = 2 * ((i / 2) * 256 + part * 64 + (i % 2) * 32);
            u32 a[4];
            load_matrices(a, rows + chunk * DEPTH * 2 + at);
            add_product(c, a, weights + at);
        }
        ring.release(slot, lane, EMPTY_ARRIVALS / PARTS);
    }
}
