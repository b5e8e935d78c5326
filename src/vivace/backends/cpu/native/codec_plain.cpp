// The codec's kernels for the architecture's baseline: NEON on ARM, SSE2 on x86.
#include "codec_kernels_impl.h"

namespace vivace::codec {

const Kernels* kernels_plain() {
#if defined(__aarch64__)
    static constexpr Kernels kernels = make_kernels("neon");
#else
    static constexpr Kernels kernels = make_kernels("baseline");
#endif
    return &kernels;
}

}  // namespace vivace::codec
