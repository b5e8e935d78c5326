// ARM with the matrix instructions for int8 (ARMv8.6-A, Neoverse V1 and N2, Apple M2 and later).
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

namespace vivace {
namespace {

#include "kernels_neon.h"

#include "kernels_dot_products.h"

#include "kernels_impl.h"

}  // namespace

const Kernels* i8mm_kernels() {
    static const Kernels table = make_table("i8mm");
    return &table;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* i8mm_kernels() { return nullptr; }
}  // namespace vivace

#endif
