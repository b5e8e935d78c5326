// Primitives of the persistent kernels: arithmetic, the ring buffer of weights, the exchange of activations.
//
// One block runs on every multiprocessor. Eight warps compute; a ninth copies weights into a ring buffer of
// chunks in shared memory, in an order that is known beforehand, so that loading never waits for a stage
// to end. A stage publishes its results in global memory as 32-bit words: a bfloat16 number and the tag of its
// stage. Readers poll until every tag is right, so there is no barrier over the grid.
//
// Defined by the compiler's command line: HEAD_DIM; SLOT_BYTES, the size of a slot of the ring buffer; FP8_MLP and
// FP8_OTHERS, whether the matrices of the MLPs and all others are in e4m3.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

constexpr int WARPS = 8;                    // that compute
constexpr int COMPUTING = 32 * WARPS;       // threads
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int THREADS = COMPUTING + 128;    // and the warp that copies, in a warpgroup that gives up its registers
#else
constexpr int THREADS = COMPUTING + 32;     // and the warp that copies
#endif
constexpr int ROWS = 8;                     // weight rows of a unit: the n of one MMA
constexpr int DEPTH = 1024;                 // numbers of a weight row in one chunk
constexpr int ROW_BYTES = 2 * DEPTH + 16;   // padded, so that eight rows fall into different banks
constexpr int CHUNK_BYTES = ROWS * ROW_BYTES;
constexpr int FP8_ROW_BYTES = DEPTH + 16;   // the numbers of a row in e4m3, then its scale; fp8.py packs them
constexpr int FP8_CHUNK_BYTES = ROWS * FP8_ROW_BYTES;
constexpr int FP8_SCALE_AT = DEPTH;         // of a row
constexpr int HEAD_BYTES = 2 * HEAD_DIM + 16;  // of a head's vector in shared memory, padded likewise
constexpr int SLICE = DEPTH / WARPS;         // numbers of a chunk's depth that a warp sums
constexpr int UNITS_AT_ONCE = 8;
constexpr int MAX_BATCH = 8;
constexpr int MAX_SLOTS = 32;                // of the ring
constexpr u32 FIRST_POLL = 200;             // cycles after which a published number may have arrived
constexpr u32 MAX_POLLS = 1u << 22;          // before a block times out
constexpr u32 NOT_A_NUMBER = 0x7fc0;        // in bfloat16

#if __CUDA_ARCH__ >= 900
constexpr u32 FULL_ARRIVALS = 1;            // one thread announces the bytes of a bulk copy
#else
constexpr u32 FULL_ARRIVALS = 32;           // every lane that copies
#endif
constexpr u32 EMPTY_ARRIVALS = WARPS;

// -- numbers -----------------------------------------------------------------------------------------

// The size of a row that is padded to whole chunks. The padding is zero, in weights and activations.
static constexpr __device__ int padded(int size) { return (size + DEPTH - 1) / DEPTH * DEPTH; }

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

// Bytes 0 and 2, then 1 and 3, from e4m3 to pairs of bfloat16. Its bits at their place in a bfloat16 are a number 2^-120
// as large, subnormal ones included; `scale` is the row's, a power of two, times 2^120, twice. All of it is exact.
DEVICE void widen(u32& even, u32& odd, u32 bytes, u32 scale) {
    const u32 low = (bytes << 8 & 0x80008000u) | (bytes << 4 & 0x07f007f0u);
    const u32 high = (bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(even) : "r"(low), "r"(scale), "r"(0x80008000u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(odd) : "r"(high), "r"(scale), "r"(0x80008000u));
}

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

DEVICE u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
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

// Called by every thread at the beginning of its role.
DEVICE void claim_registers(bool is_computing) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (is_computing) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
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
    u32 slot;        // where the present stage begins
    u32 turn;        // how often the ring was filled before

    // Waits for the stage's chunk of this index and returns its slot.
    DEVICE_MEMBER u32 wait(u32 index) const {
        u32 at = slot + index, parity = turn;
        for (; at >= num_slots; at -= num_slots) ++parity;
        barrier_wait(full + 8 * at, parity & 1);
        return at;
    }

    DEVICE_MEMBER void advance(u32 num_chunks) {
        for (slot += num_chunks; slot >= num_slots; slot -= num_slots) ++turn;
    }

    DEVICE_MEMBER u32 address(u32 slot) const { return chunks + slot * SLOT_BYTES; }

    // Called by each of the warps, which all read every chunk.
    DEVICE_MEMBER void release(u32 slot, u32 lane) const {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * slot);
    }

    // For the warp that copies weights: eight rows of DEPTH numbers, `pitch` numbers apart.
    DEVICE_MEMBER void fetch(const u16* weight, u64 pitch, u32 lane, u64 policy) {
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
        advance(1);
    }

    // The same for a chunk in e4m3, which is contiguous.
    DEVICE_MEMBER void fetch_fp8(const u8* chunk, u32 lane, u64 policy) {
        if (turn > 0) barrier_wait(empty + 8 * slot, (turn - 1) & 1);
        const u32 target = address(slot), ready = full + 8 * slot;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }"
                         ::"r"(ready), "r"(FP8_CHUNK_BYTES) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                         "[%0], [%1], %2, [%3], %4;"
                         ::"r"(target), "l"(chunk), "r"(FP8_CHUNK_BYTES), "r"(ready), "l"(policy) : "memory");
        }
        __syncwarp();
#else
        for (u32 at = 16 * lane; at < FP8_CHUNK_BYTES; at += 16 * 32)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + at), "l"(chunk + at) : "memory");
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ready) : "memory");
#endif
        advance(1);
    }

    // The same for `count` contiguous vectors of one head.
    DEVICE_MEMBER void fetch_heads(const u16* vectors, u32 count, u32 lane) {
        if (turn > 0) barrier_wait(empty + 8 * slot, (turn - 1) & 1);
        const u32 target = address(slot), ready = full + 8 * slot;
#if __CUDA_ARCH__ >= 900
        if (lane == 0)
            asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }"
                         ::"r"(ready), "r"(count * HEAD_DIM * 2) : "memory");
        __syncwarp();
        for (u32 i = lane; i < count; i += 32)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(target + i * HEAD_BYTES), "l"(vectors + i * HEAD_DIM), "r"(2 * HEAD_DIM), "r"(ready)
                         : "memory");
#else
        for (u32 piece = lane; piece < count * HEAD_DIM / 8; piece += 32) {
            const u32 row = piece / (HEAD_DIM / 8), within = piece % (HEAD_DIM / 8);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(target + row * HEAD_BYTES + 16 * within), "l"(vectors + 8 * piece) : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ready) : "memory");
#endif
        advance(1);
    }
};

// Orders this thread's writes to a slot of the ring before the copy that fills it next.
DEVICE void fence_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Policies of the L2 cache: `keep` for weights that are soon read again, `stream` for all others.
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

// Where a number of a row lies whose readers take eight in a row each: their two loads lie apart. The row has a multiple of
// 256 words (`pitch_of`).
DEVICE u32 spread(u32 i) { return i / 256 * 256 + i % 8 / 4 * 128 + i % 256 / 8 * 4 + i % 4; }

static constexpr __device__ int pitch_of(int size) { return (size + 255) / 256 * 256; }

DEVICE bool is_tagged(uint4 words, u32 tag) {
    return (words.x >> 16) == tag && (words.y >> 16) == tag && (words.z >> 16) == tag && (words.w >> 16) == tag;
}

DEVICE void pause_cycles(u32 cycles) {
    u32 begin, now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
    do asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    while (now - begin < cycles);
}

// Reads `count` groups of four words, `step` words apart, until all are tagged. After a time-out (`lost`) every wait of the
// block ends and gives NaN, so that the frame is reported as not finite. The first read of a stage (`is_early`) comes too soon if it comes at once, and would only keep others waiting.
template <int V>
DEVICE void take(uint4 (&out)[V], const u32* at, u32 step, u32 tag, volatile u32* lost, bool is_early = true,
                 u32 count = V) {
    if (is_early) pause_cycles(FIRST_POLL);
    for (u32 polls = 0;; ++polls) {
        bool is_there = true;
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (v < count) out[v] = peek(at + v * step);
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (v < count) is_there &= is_tagged(out[v], tag);
        if (is_there) return;
        if (*lost) break;
        if (polls == MAX_POLLS) *lost = 1;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) out[v] = make_uint4(NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER);
}

// -- products ----------------------------------------------------------------------------------------

// Activations in shared memory: rows of `pitch` bytes.
struct Rows {
    u8* base;
    u32 pitch;

    DEVICE_MEMBER u8* row(u32 slot) const { return base + slot * pitch; }

    // Where a lane reads its warp's slice; rows past the last repeat it.
    DEVICE_MEMBER u32 lane_address(u32 lane, u32 warp, u32 num_rows) const {
        const u32 row = lane & 7;
        const u32 at = (row < num_rows ? row : num_rows - 1) * pitch + 2 * SLICE * warp;
        return shared_address(base) + at + (lane >> 3) * 16;
    }
};

DEVICE u32 units_here(u32 units) {
    return blockIdx.x < units ? (units - 1 - blockIdx.x) / gridDim.x + 1 : 0;
}

// A warp's slices of C chunks of the rows, as the MMA takes them.
template <int C>
struct Slices {
    u32 x[C][SLICE / 32][4];

    DEVICE_MEMBER void load(u32 rows) {
#pragma unroll
        for (int chunk = 0; chunk < C; ++chunk)
#pragma unroll
            for (int i = 0; i < SLICE / 32; ++i) load_matrices(x[chunk][i], rows + 2 * DEPTH * chunk + 64 * i);
    }
};

// A warp's slices of one chunk of weights, as the MMA takes them: eight rows in the place of its columns.
struct Chunk {
    u32 w[SLICE / 32][4];

    DEVICE_MEMBER void load(const Ring& ring, u32 index, bool is_fp8, u32 lane, u32 warp) {
        const u32 slot = ring.wait(index);
        if (is_fp8) {
            load_fp8(ring.address(slot), lane, warp);
        } else {
            const u32 at = ring.address(slot) + (lane & 7) * ROW_BYTES + (lane >> 3) * 16 + 2 * SLICE * warp;
#pragma unroll
            for (int i = 0; i < SLICE / 32; ++i) load_matrices(w[i], at + 64 * i);
        }
        ring.release(slot, lane);
    }

    DEVICE_MEMBER void load_fp8(u32 chunk, u32 lane, u32 warp) {
        const u32 at = chunk + (lane & 7) * FP8_ROW_BYTES + (lane >> 3) * 16 + SLICE * warp;
        const u32 scale = load_word(chunk + (lane >> 2) * FP8_ROW_BYTES + FP8_SCALE_AT);
#pragma unroll
        for (int i = 0; i < SLICE / 64; ++i) {
            u32 bytes[4];
            load_matrices(bytes, at + 64 * i);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                widen(w[2 * i + n / 2][n % 2 * 2], w[2 * i + n / 2][n % 2 * 2 + 1], bytes[n], scale);
        }
    }

    // Each half of a slice has its own sum.
    DEVICE_MEMBER void multiply_by(float (&c)[2][4], const u32 (&x)[SLICE / 32][4]) const {
#pragma unroll
        for (int i = 0; i < SLICE / 64; ++i)
#pragma unroll
            for (int step = 0; step < 4; step += 2)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int n = i + half * (SLICE / 64);
                    multiply(c[half], x[n][step], 0, x[n][step + 1], 0, w[n][step], w[n][step + 1]);
                }
    }
};

// Number `row * ROWS + column` of a unit goes to parts[warp] there.
DEVICE void store_parts(float (&parts)[WARPS][MAX_BATCH * ROWS], const float (&c)[2][4], u32 lane, u32 warp) {
    *reinterpret_cast<float2*>(&parts[warp][2 * lane]) =
        make_float2(__fadd_rn(c[0][0], c[1][0]), __fadd_rn(c[0][1], c[1][1]));
}

// The same of two units; here the weights are the sixteen rows of the MMA. Without a second unit (`has_second`) the
// first stands in for it, and its sums are discarded.
struct PairChunk {
    u32 w[SLICE / 16][4];

    // `near` and `far` are indices of the ring.
    DEVICE_MEMBER void load(const Ring& ring, u32 near, u32 far, bool has_second, bool is_fp8, u32 lane, u32 warp) {
        const u32 near_slot = ring.wait(near), far_slot = has_second ? ring.wait(far) : near_slot;
        if (is_fp8) {
            load_fp8(ring.address(near_slot), ring.address(far_slot), lane, warp);
        } else {
            const u32 at = ring.address(lane & 8 ? far_slot : near_slot) + (lane & 7) * ROW_BYTES + (lane >> 4) * 16 +
                           2 * SLICE * warp;
#pragma unroll
            for (int i = 0; i < SLICE / 16; ++i) load_matrices(w[i], at + 32 * i);
        }
        ring.release(near_slot, lane);
        if (has_second) ring.release(far_slot, lane);
    }

    DEVICE_MEMBER void load_fp8(u32 near, u32 far, u32 lane, u32 warp) {
        const u32 at = (lane & 8 ? far : near) + (lane & 7) * FP8_ROW_BYTES + (lane >> 4) * 16 + SLICE * warp;
        const u32 scale_at = (lane >> 2) * FP8_ROW_BYTES + FP8_SCALE_AT;
        const u32 scales[2] = {load_word(near + scale_at), load_word(far + scale_at)};
#pragma unroll
        for (int i = 0; i < SLICE / 32; ++i) {
            u32 bytes[4];
            load_matrices(bytes, at + 32 * i);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                widen(w[2 * i + n / 2][n % 2], w[2 * i + n / 2][n % 2 + 2], bytes[n], scales[n % 2]);
        }
    }

    DEVICE_MEMBER void multiply_by(float (&c)[2][4], const u32 (&rows)[SLICE / 32][4]) const {
#pragma unroll
        for (int i = 0; i < SLICE / 32; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32(&a)[4] = w[i + half * (SLICE / 32)];
                const u32(&x)[4] = rows[i / 2 + half * (SLICE / 64)];
                multiply(c[half], a[0], a[1], a[2], a[3], x[i % 2 * 2], x[i % 2 * 2 + 1]);
            }
    }
};

DEVICE void store_pair(float (*parts)[WARPS][MAX_BATCH * ROWS], const float (&c)[2][4], u32 num_rows, u32 lane,
                       u32 warp) {
    const u32 row = 2 * (lane % 4), column = lane / 4;
#pragma unroll
    for (int n = 0; n < 4; ++n)
        if (row + n % 2 < num_rows) parts[n / 2][warp][(row + n % 2) * ROWS + column] = __fadd_rn(c[0][n], c[1][n]);
}
