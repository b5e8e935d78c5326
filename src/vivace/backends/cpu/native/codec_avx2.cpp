// The codec's kernels for AVX2 with FMA.
#include "codec_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "codec_kernels_impl.h"
#endif

namespace vivace::codec {

const Kernels* kernels_avx2() {
#if defined(__AVX2__) && defined(__FMA__)
    static constexpr Kernels kernels = make_kernels("avx2");
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
