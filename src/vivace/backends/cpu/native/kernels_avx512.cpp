// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
#include "kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace vivace {
namespace {

#include "kernels_avx512.h"

#include "kernels_vnni_int4.h"

#include "kernels_vnni.h"

inline void multiply_int8(const Product& p) { multiply_blocks(p, p.begin); }

#include "kernels_impl.h"

}  // namespace

const Kernels* avx512_kernels() {
    static const Kernels table = make_table("avx512");
    return &table;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace vivace

#endif
