// The codec's decoder for one stream at a time: codes to samples, with the causal state as an
// argument. It computes what vivace/model/codec_decoder.py does.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "codec_kernels.h"
#include "threads.h"

namespace vivace::codec {

// The order is that of `_shape` in codec.py.
struct CodecShape {
    int64_t num_quantizers, num_semantic, codebook_size, codebook_width, codebook_dim;
    int64_t latent_dim, hidden_size, intermediate_size, num_layers;
    int64_t num_heads, num_kv_heads, head_dim, window;
    int64_t decoder_dim, num_ratios, num_rates;
};

constexpr float LAYER_NORM_EPS = 1e-6f;  // of ConvNeXt layers
constexpr int64_t MAX_PASS_FRAMES = 8;  // decoded together; their rows share a sweep of the weights

// Hands out the tensors in the order in which Python lists them.
struct TensorList {
    const float* const* tensors;
    const int64_t* sizes;
    int64_t count;
    void (*on_take)(int64_t num_bytes);  // called before a tensor is read; or null
    int64_t used = 0;

    const float* take(int64_t size);  // throws std::invalid_argument for another size
};

// Rows of a layer's input that the next call needs, at `offset` of the state.
struct Tail {
    int64_t offset = 0, num_rows = 0, width = 0;
};

class CodecDecoder {
public:
    // `has_half_weights` stores the weights of the layers before the stages in float16, to save
    // memory. Throws std::invalid_argument if the tensors do not fit the shape.
    CodecDecoder(const CodecShape& shape, const std::vector<int64_t>& ratios,
                 const std::vector<int64_t>& rates, float rms_eps, float rope_theta,
                 TensorList tensors, int num_threads, bool has_half_weights,
                 const Kernels& kernels);

    int64_t state_size() const { return state_size_; }
    int64_t frame_size() const { return frame_size_; }
    const Kernels& kernels() const { return kernels_; }
    // Returns false for a code outside its codebook. `num_past` frames were decoded before.
    bool decode(float* state, int64_t num_past, const int64_t* codes, int64_t num_frames,
                float* samples);

private:
    struct SnakeWeights {
        Buffer<float> frequency, gain;  // repeated for every output row of a convolution
        Snake view() const { return {frequency.data(), gain.data()}; }
    };
    struct Block {  // of the transformer
        Buffer<float> first_norm, second_norm, first_scale, second_scale;
        Conv qkv, out, gate_up, down;
        int64_t ring = 0;  // offset of keys and values in the state
    };
    struct Upsample {  // a transposed convolution and a ConvNeXt layer
        Conv widen, expand, contract;
        Buffer<float> taps, bias, norm_weight, norm_bias, gamma;  // taps: [tap, channels]
        Tail tail;
    };
    struct Unit {
        SnakeWeights first, second;
        Conv wide, narrow;
        Tail tail;
    };
    struct Stage {  // of the decoder: snake, transposed convolution, three units
        SnakeWeights snake;
        Conv widen;
        Tail tail;
        std::vector<Unit> units;
        int64_t rate = 0, num_channels = 0;  // of the output
        int64_t max_rows = 0;  // of the input, at once
        Buffer<float> input, residual, active, hidden;  // scratch
    };

    // -- construction
    enum class Precision {
        full,    // layers up to the transformer
        fine,    // layers from there to the stages
        stage,   // layers of the stages with one or two taps
        coarse,  // layers of the stages with seven taps: most of the work, and not most of the error
    };
    const SplitKernels* find_split(Precision precision) const;  // null: float32
    template <class CopyPanel>
    Conv pack(int64_t num_in, int64_t num_out, int64_t num_taps, int64_t dilation,
              Precision precision, const CopyPanel& copy_panel);
    Buffer<uint16_t> round_weights(Buffer<float>& weights);
    Conv take_linear(TensorList& tensors, int64_t num_in, int64_t num_out, bool has_bias,
                     Precision precision = Precision::full);
    Conv take_conv(TensorList& tensors, int64_t num_in, int64_t num_out, int64_t num_taps,
                   int64_t dilation, bool has_bias, Precision precision = Precision::full);
    Conv take_transposed(TensorList& tensors, int64_t num_in, int64_t num_out, int64_t stride,
                         int64_t num_taps, Precision precision);
    SnakeWeights take_snake(TensorList& tensors, int64_t num_channels, int64_t num_repeats) const;
    // Repeated, then padded with zeros to whole vectors.
    Buffer<float> take_padded(TensorList& tensors, int64_t size, int64_t num_repeats = 1) const;
    void take_quantizer(TensorList& tensors);
    void take_transformer(TensorList& tensors);
    void take_upsampling(TensorList& tensors, const std::vector<int64_t>& ratios);
    void take_stages(TensorList& tensors, const std::vector<int64_t>& rates);
    Tail reserve(int64_t num_rows, int64_t width);
    void reserve_split(const Conv& conv, int64_t num_rows);
    void allocate();

    // -- one pass; every thread calls these functions
    struct Pass {
        float* state;
        int64_t num_past, num_frames;
        const int64_t* codes;
        float* samples;
    };
    struct Target {  // where a stage writes the input of the next layer
        Buffer<float>& rows;  // begins with the past
        const Tail& tail;
        const SnakeWeights& snake;
    };
    Target target(size_t stage);
    void run(const Pass& pass, int thread);
    void embed(const Pass& pass, int thread);
    void transform(const Pass& pass, int thread);
    void run_block(const Pass& pass, const Block& block, int thread);
    void turn(const Pass& pass, const Block& block, int64_t row);
    void upsample(const Pass& pass, int thread);
    void synthesize(const Pass& pass, size_t index, int64_t num_rows, float*& samples, int thread);
    void run_stage(const Pass& pass, size_t index, const float* x, int64_t num_rows, int thread);
    void convolve(const Conv& conv, const float* x, int64_t num_rows, const Epilogue& epilogue,
                  int thread);
    template <class Work>
    void for_part(int64_t count, int thread, const Work& work) const;
    template <class Work>
    void share(int64_t count, int thread, const Work& work);
    static void read_tail(const Pass& pass, const Tail& tail, float* rows, int thread);
    static void keep_tail(const Pass& pass, const Tail& tail, const float* rows, int64_t num_rows,
                          int thread);

    const Kernels& kernels_;
    CodecShape shape_;
    float rms_eps_;
    Pool pool_;
    const bool has_half_weights_;
    std::mutex mutex_;  // of `decode`, which uses the scratch below
    int64_t state_size_ = 0, frame_size_ = 1, up_ratio_ = 1, capacity_ = 0;
    Buffer<float> codebooks_;          // [quantizers, codes, width]
    Buffer<uint16_t> half_codebooks_;  // in float16, which replaces `codebooks_`; or empty
    Conv quantizer_out_, pre_conv_, input_proj_, output_proj_, first_conv_, last_conv_;
    Tail pre_tail_, first_tail_, last_tail_;
    Buffer<float> final_norm_, frequencies_;
    SnakeWeights last_snake_;
    std::vector<Block> blocks_;
    std::vector<Upsample> upsampling_;
    std::vector<Stage> stages_;
    // Scratch of a pass, as rows. Inputs of convolutions begin with their past.
    Buffer<float> vectors_, quantized_, latents_, hidden_, normal_, wide_, mixed_, angles_;
    Buffer<float> up_normal_, up_wide_, first_input_, last_input_;
    std::vector<Buffer<float>> up_rows_;        // of each upsampling layer
    std::vector<Buffer<float>> sums_, scores_;  // of each thread
    Buffer<uint16_t> split_;                         // rows of `SplitKernels::split_row`
};

}  // namespace vivace::codec
