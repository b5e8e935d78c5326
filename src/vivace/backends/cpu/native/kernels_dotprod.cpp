// ARM with the dot product instructions (ARMv8.2-A and later, Apple M1).
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

namespace vivace {
namespace {

#include "kernels_neon.h"

#include "kernels_dot_products.h"

#include "kernels_packed_rows.h"

#include "kernels_impl.h"

}  // namespace

const Kernels* dotprod_kernels() {
    static const Kernels table = make_table("dotprod");
    return &table;
}

}  // namespace vivace

#else

namespace vivace {
const Kernels* dotprod_kernels() { return nullptr; }
}  // namespace vivace

#endif
