// The codec's kernels for AVX-512.
#include "codec_kernels.h"
#include "kernels.h"

#if defined(__AVX512F__)
#include "codec_kernels_impl.h"
#endif

namespace vivace::codec {

const Kernels* kernels_avx512() {
#if defined(__AVX512F__)
    static constexpr Kernels kernels = make_kernels("avx512");
    if (find_kernels("avx512f")) return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
