// The codec's kernels for AVX2 with FMA and F16C.
#include "codec_kernels.h"
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "codec_kernels_impl.h"
#endif

namespace vivace::codec {

const Kernels* kernels_avx2() {
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    static constexpr Kernels kernels = make_kernels("avx2");
    if (find_kernels("avx2")) return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
