// The codec's functions for Python (codec.py).
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "api.h"
#include "codec.h"

using vivace::codec::CodecDecoder;
using vivace::codec::CodecShape;

namespace {

// The kernels of this name, or the fastest ones that the processor has and that are not in the list
// `excluded`. Throws std::invalid_argument for an unknown name.
const vivace::codec::Kernels& pick_kernels(const char* name, const char* excluded,
                                           const CodecShape& shape) {
    // Fewer channels would leave a part of every AMX tile empty.
    const bool fills_tiles = shape.decoder_dim >> shape.num_rates >= vivace::codec::SPLIT_DEPTH;
    const bool may_tile = fills_tiles || name;
    for (const auto* kernels : {may_tile ? vivace::codec::kernels_bf16() : nullptr,
                                may_tile ? vivace::codec::kernels_amx() : nullptr,
                                vivace::codec::kernels_avx512(), vivace::codec::kernels_avx2(),
                                vivace::codec::kernels_int8(), vivace::codec::kernels_half(),
                                vivace::codec::kernels_plain()})
        if (kernels && (name ? std::strcmp(name, kernels->name) == 0
                             : !std::strstr(excluded, kernels->name)))
            return *kernels;
    throw std::invalid_argument("kernels");
}

}  // namespace

VIVACE_API int vivace_codec_new(const CodecShape* shape, const int64_t* ratios,
                                const int64_t* rates, float rms_eps, float rope_theta,
                                const float* const* tensors, const int64_t* sizes,
                                int64_t num_tensors, int num_threads, const char* kernels,
                                const char* excluded, int has_half_weights,
                                void (*on_take)(int64_t num_bytes), CodecDecoder** decoder) {
    try {
        *decoder = new CodecDecoder(*shape, {ratios, ratios + shape->num_ratios},
                                    {rates, rates + shape->num_rates}, rms_eps, rope_theta,
                                    {tensors, sizes, num_tensors, on_take}, num_threads,
                                    has_half_weights != 0, pick_kernels(kernels, excluded, *shape));
        return vivace::OK;
    } catch (const std::bad_alloc&) {
        return vivace::NO_MEMORY;
    } catch (const std::system_error&) {
        return vivace::NO_THREADS;
    } catch (const std::exception&) {
        return vivace::BAD_ARGUMENT;
    }
}

VIVACE_API void vivace_codec_free(CodecDecoder* decoder) { delete decoder; }

VIVACE_API int64_t vivace_codec_state_size(const CodecDecoder* decoder) {
    return decoder->state_size();
}

VIVACE_API int64_t vivace_codec_frame_size(const CodecDecoder* decoder) {
    return decoder->frame_size();
}

VIVACE_API const char* vivace_codec_kernels(const CodecDecoder* decoder) {
    return decoder->kernels().name;
}

// The activation alone, for tests of its error.
VIVACE_API void vivace_codec_snake(const CodecDecoder* decoder, const float* x, int64_t size,
                                   float frequency, float gain, float* out) {
    decoder->kernels().snake(x, size, frequency, gain, out);
}

// Decodes `num_frames` frames of a stream with `num_past` frames so far.
VIVACE_API int vivace_codec_decode(CodecDecoder* decoder, float* state, int64_t num_past,
                                   const int64_t* codes, int64_t num_frames, float* samples) {
    const bool is_known = decoder->decode(state, num_past, codes, num_frames, samples);
    return is_known ? vivace::OK : vivace::BAD_ARGUMENT;
}
