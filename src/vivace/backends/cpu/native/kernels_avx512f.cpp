// x86-64 with AVX-512 (F, BW, DQ, VL) but without VNNI. Integer products are those of AVX2.
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace vivace {
namespace {

#include "kernels_avx512.h"

#define HAS_OTHER_INTEGERS

inline void round_row(int kind, const float* x, int in, int8_t* codes, float* scale,
                      int32_t* start) {
    avx2_kernels()->round_row(kind, x, in, codes, scale, start);
}
inline void multiply_int8(const Product& p) { avx2_kernels()->multiply(p); }
inline void multiply_int4(const Product& p) { avx2_kernels()->multiply(p); }

#include "kernels_impl.h"

}  // namespace

const Kernels* avx512f_kernels() {
    static const Kernels table = make_table("avx512f");
    return avx2_kernels() ? &table : nullptr;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* avx512f_kernels() { return nullptr; }
}  // namespace vivace

#endif
