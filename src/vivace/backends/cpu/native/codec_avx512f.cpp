// The codec's kernels for AVX-512.
#include "codec_kernels.h"

#if defined(__AVX512F__)
#include "codec_kernels_impl.h"
#endif

namespace vivace::codec {

const Kernels* kernels_avx512() {
#if defined(__AVX512F__)
    static constexpr Kernels kernels = make_kernels("avx512");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &kernels;
#endif
    return nullptr;
}

}  // namespace vivace::codec
