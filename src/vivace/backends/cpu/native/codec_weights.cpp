// Packs the tensors of a codec and reserves the state and the scratch of its decoder.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "codec.h"
#include "kernels.h"

namespace vivace::codec {

namespace {

constexpr int64_t SHALLOW_BYTES = 256 << 10;  // of a stage's rows, if its weights fit in a cache
constexpr int64_t DEEP_BYTES = 800 << 10;     // of a stage's rows, if its weights do not
constexpr int64_t CACHED_WEIGHTS = 4 << 20;
constexpr float LARGEST_HALF = 65504.0f;
constexpr float SMALLEST_PEAK = 1e-3f;  // below, most float16 numbers would be subnormal
constexpr int64_t NUM_TRIED = 256;  // weights

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Divides vectors into panels of nearly equal size.
std::vector<int> divide(int64_t num_vectors, int64_t most) {
    const int64_t count = (num_vectors + most - 1) / most;
    std::vector<int> starts;
    for (int64_t i = 0; i <= count; ++i)
        starts.push_back(static_cast<int>((num_vectors * i + count - 1) / count));
    return starts;
}

bool suits_half(const Buffer<float>& weights) {
    float largest = 0.0f;
    for (const float x : weights)
        if (!(std::fabs(x) <= largest)) largest = std::fabs(x);
    return largest >= SMALLEST_PEAK && largest <= LARGEST_HALF;
}

}  // namespace

const float* TensorList::take(int64_t size) {
    if (used >= count || sizes[used] != size) throw std::invalid_argument("tensor");
    if (on_take) on_take(size * int64_t{sizeof(float)});
    return tensors[used++];
}

CodecDecoder::CodecDecoder(const CodecShape& shape, const std::vector<int64_t>& ratios,
                           const std::vector<int64_t>& rates, float rms_eps, float rope_theta,
                           TensorList tensors, int num_threads, bool has_half_weights,
                           const Kernels& kernels)
    : kernels_(kernels),
      shape_(shape),
      rms_eps_(rms_eps),
      pool_(num_threads),
      has_half_weights_(has_half_weights) {
    for (int64_t i = 0; i < shape.head_dim / 2; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(shape.head_dim);
        frequencies_.push_back(1.0f / std::pow(rope_theta, exponent));
    }
    take_quantizer(tensors);
    take_transformer(tensors);
    take_upsampling(tensors, ratios);
    take_stages(tensors, rates);
    if (tensors.used != tensors.count) throw std::invalid_argument("too many tensors");
    allocate();
}

Tail CodecDecoder::reserve(int64_t num_rows, int64_t width) {
    const Tail tail{state_size_, num_rows, width};
    state_size_ += num_rows * width;
    return tail;
}

// Tiles read up to MAX_CONV_ROWS rows beyond the end; those rows change no other row.
void CodecDecoder::reserve_split(const Conv& conv, int64_t num_rows) {
    if (!conv.split_kernels) return;
    const int64_t width = split_width(conv.num_in, conv.split_kernels->num_parts);
    const size_t size = (num_rows + conv.reach() + MAX_CONV_ROWS) * width;
    split_.resize(std::max(split_.size(), size));
}

const SplitKernels* CodecDecoder::find_split(Precision precision) const {
    if (precision == Precision::coarse && kernels_.coarse.num_parts) return &kernels_.coarse;
    const bool is_used = kernels_.split.is_for_all || precision != Precision::full;
    return kernels_.split.num_parts && is_used ? &kernels_.split : nullptr;
}

// `copy_panel(first, count, width, to)` writes the weights of `count` outputs from `first` on to
// [taps, in, width].
template <class CopyPanel>
Conv CodecDecoder::pack(int64_t num_in, int64_t num_out, int64_t num_taps, int64_t dilation,
                        Precision precision, const CopyPanel& copy_panel) {
    const SplitKernels* split = find_split(precision);
    const int64_t lanes = split ? split->num_lanes : kernels_.num_lanes;
    const int64_t num_vectors = (num_out + lanes - 1) / lanes;
    Conv conv;
    conv.split_kernels = split;
    conv.num_in = num_in, conv.num_out = num_out;
    conv.num_taps = num_taps, conv.dilation = dilation;
    conv.panel_starts = divide(num_vectors, split ? split->max_vectors : kernels_.max_vectors);
    conv.bias.assign(num_vectors * lanes, 0.0f);
    conv.weight.resize(num_vectors * lanes * num_taps * num_in);
    pool_.for_each(conv.num_panels(), [&](int64_t panel) {
        const int64_t first = conv.panel_starts[panel] * lanes;
        const int64_t width = conv.panel_starts[panel + 1] * lanes - first;
        copy_panel(first, std::min(width, num_out - first), width,
                   conv.weight.data() + first * num_taps * num_in);
    });
    if (split) {
        const int64_t depth = num_taps * split_width(num_in, split->num_parts);
        conv.split.assign(conv.bias.size() * depth, 0);
        conv.split_scale.assign(conv.bias.size(), 0.0f);
        split->split_weight(conv);
        Buffer<float>().swap(conv.weight);  // `= {}` would keep the memory
    } else if (precision == Precision::full || precision == Precision::fine) {
        conv.half = round_weights(conv.weight);
    }
    return conv;
}

// Takes weights in float16 if they stay equal, or with `has_half_weights` if their range suits
// float16. Otherwise takes none.
Buffer<uint16_t> CodecDecoder::round_weights(Buffer<float>& weights) {
    const int64_t size = static_cast<int64_t>(weights.size()), num_parts = pool_.size();
    const bool may_change = has_half_weights_ && suits_half(weights);
    uint16_t first[NUM_TRIED];  // most weights that change are found here, before memory is reserved
    if (!kernels_.narrow ||
        !kernels_.narrow(weights.data(), std::min(size, NUM_TRIED), may_change, first))
        return {};
    Buffer<uint16_t> rounded(weights.size());
    std::vector<char> is_done(size_t(num_parts), 0);
    pool_.for_each(num_parts, [&](int64_t part) {
        const int64_t begin = size * part / num_parts, end = size * (part + 1) / num_parts;
        is_done[size_t(part)] = kernels_.narrow(weights.data() + begin, end - begin, may_change,
                                                rounded.data() + begin);
    });
    if (std::count(is_done.begin(), is_done.end(), 1) < num_parts) return {};
    Buffer<float>().swap(weights);  // `= {}` would keep the memory
    return rounded;
}

Conv CodecDecoder::take_conv(TensorList& tensors, int64_t num_in, int64_t num_out, int64_t num_taps,
                             int64_t dilation, bool has_bias, Precision precision) {
    const float* weight = tensors.take(num_out * num_in * num_taps);  // [out, in, tap]
    Conv conv = pack(num_in, num_out, num_taps, dilation, precision,
                     [=](int64_t first, int64_t count, int64_t width, float* to) {
                         for (int64_t lane = 0; lane < count; ++lane) {
                             const float* from = weight + (first + lane) * num_in * num_taps;
                             for (int64_t in = 0; in < num_in; ++in)
                                 for (int64_t tap = 0; tap < num_taps; ++tap)
                                     to[(tap * num_in + in) * width + lane] = *from++;
                         }
                     });
    if (has_bias) std::copy_n(tensors.take(num_out), num_out, conv.bias.begin());
    return conv;
}

Conv CodecDecoder::take_linear(TensorList& tensors, int64_t num_in, int64_t num_out, bool has_bias,
                               Precision precision) {
    return take_conv(tensors, num_in, num_out, 1, 1, has_bias, precision);
}

// Tap 0 is the row before, whose outputs overlap; the last tap is the row itself.
Conv CodecDecoder::take_transposed(TensorList& tensors, int64_t num_in, int64_t num_out,
                                   int64_t stride, int64_t num_taps, Precision precision) {
    const int64_t kernel = num_taps * stride;
    const float* weight = tensors.take(num_in * num_out * kernel);  // [in, out, kernel]
    Conv conv = pack(num_in, stride * num_out, num_taps, 1, precision,
                     [=](int64_t first, int64_t count, int64_t width, float* to) {
                         std::vector<int64_t> places;  // of each column, in the kernels of an input
                         for (int64_t i = first; i < first + count; ++i)
                             places.push_back(i % num_out * kernel + i / num_out);
                         for (int64_t tap = num_taps - 1; tap >= 0; --tap)
                             for (int64_t in = 0; in < num_in; ++in, to += width) {
                                 const float* from = weight + in * num_out * kernel + tap * stride;
                                 for (int64_t i = 0; i < count; ++i) to[i] = from[places[i]];
                             }
                     });
    const float* bias = tensors.take(num_out);
    for (int64_t i = 0; i < stride * num_out; ++i) conv.bias[i] = bias[i % num_out];
    return conv;
}

Buffer<float> CodecDecoder::take_padded(TensorList& tensors, int64_t size,
                                             int64_t num_repeats) const {
    const float* values = tensors.take(size);
    const int num_lanes = std::max(kernels_.num_lanes, kernels_.split.num_lanes);
    Buffer<float> padded(round_up(size * num_repeats, num_lanes), 0.0f);
    for (int64_t i = 0; i < size * num_repeats; ++i) padded[i] = values[i % size];
    return padded;
}

CodecDecoder::SnakeWeights CodecDecoder::take_snake(TensorList& tensors, int64_t num_channels,
                                                    int64_t num_repeats) const {
    SnakeWeights snake;
    snake.frequency = take_padded(tensors, num_channels, num_repeats);
    snake.gain = take_padded(tensors, num_channels, num_repeats);
    return snake;
}

void CodecDecoder::take_quantizer(TensorList& tensors) {
    const int64_t size = shape_.codebook_size * shape_.codebook_width;
    for (int64_t i = 0; i < shape_.num_quantizers; ++i) {
        const float* codebook = tensors.take(size);
        codebooks_.insert(codebooks_.end(), codebook, codebook + size);
    }
    half_codebooks_ = round_weights(codebooks_);
    // One product for both projections: their inputs lie side by side.
    const int64_t width = shape_.codebook_width, out = shape_.codebook_dim;
    const float* parts[] = {tensors.take(out * width), tensors.take(out * width)};  // [out, in]
    quantizer_out_ = pack(2 * width, out, 1, 1, Precision::full,
                          [=](int64_t first, int64_t count, int64_t stride, float* to) {
                              for (int64_t in = 0; in < 2 * width; ++in, to += stride)
                                  for (int64_t lane = 0; lane < count; ++lane)
                                      to[lane] = parts[in / width][(first + lane) * width + in % width];
                          });
    pre_conv_ = take_conv(tensors, out, shape_.latent_dim, 3, 1, true);
    pre_tail_ = reserve(pre_conv_.reach(), out);
}

void CodecDecoder::take_transformer(TensorList& tensors) {
    const int64_t hidden = shape_.hidden_size, inner = shape_.intermediate_size;
    const int64_t kv_width = shape_.num_kv_heads * shape_.head_dim;
    const int64_t q_width = shape_.num_heads * shape_.head_dim;
    capacity_ = shape_.window + MAX_PASS_FRAMES;
    input_proj_ = take_linear(tensors, shape_.latent_dim, hidden, true);
    for (int64_t i = 0; i < shape_.num_layers; ++i) {
        Block& block = blocks_.emplace_back();
        block.first_norm = take_padded(tensors, hidden);
        block.qkv = take_linear(tensors, hidden, q_width + 2 * kv_width, false);
        block.out = take_linear(tensors, q_width, hidden, false);
        block.first_scale = take_padded(tensors, hidden);
        block.second_norm = take_padded(tensors, hidden);
        block.gate_up = take_linear(tensors, hidden, 2 * inner, false);
        block.down = take_linear(tensors, inner, hidden, false);
        block.second_scale = take_padded(tensors, hidden);
        block.ring = reserve(capacity_, 2 * kv_width).offset;
    }
    final_norm_ = take_padded(tensors, hidden);
    output_proj_ = take_linear(tensors, hidden, shape_.latent_dim, true);
}

void CodecDecoder::take_upsampling(TensorList& tensors, const std::vector<int64_t>& ratios) {
    const int64_t width = shape_.latent_dim, num_taps = 7;
    for (const int64_t ratio : ratios) {
        Upsample& layer = upsampling_.emplace_back();
        layer.widen = take_transposed(tensors, width, width, ratio, 1, Precision::fine);
        const float* taps = tensors.take(width * num_taps);  // [channels, tap]
        for (int64_t tap = 0; tap < num_taps; ++tap)
            for (int64_t i = 0; i < width; ++i) layer.taps.push_back(taps[i * num_taps + tap]);
        layer.bias = take_padded(tensors, width);
        layer.norm_weight = take_padded(tensors, width);
        layer.norm_bias = take_padded(tensors, width);
        layer.expand = take_linear(tensors, width, 4 * width, true, Precision::fine);
        layer.contract = take_linear(tensors, 4 * width, width, true, Precision::fine);
        layer.gamma = take_padded(tensors, width);
        layer.tail = reserve(num_taps - 1, width);
        up_ratio_ *= ratio;
    }
}

void CodecDecoder::take_stages(TensorList& tensors, const std::vector<int64_t>& rates) {
    int64_t width = shape_.decoder_dim;
    frame_size_ = up_ratio_;
    first_conv_ = take_conv(tensors, shape_.latent_dim, width, 7, 1, true, Precision::fine);
    first_tail_ = reserve(first_conv_.reach(), shape_.latent_dim);
    for (const int64_t rate : rates) {
        Stage& stage = stages_.emplace_back();
        stage.rate = rate, stage.num_channels = width / 2;
        stage.snake = take_snake(tensors, width, 1);
        stage.widen = take_transposed(tensors, width, width / 2, rate, 2, Precision::stage);
        stage.tail = reserve(1, width);
        width /= 2;
        for (const int64_t dilation : {1, 3, 9}) {
            Unit& unit = stage.units.emplace_back();
            unit.first = take_snake(tensors, width, dilation == 1 ? rate : 1);
            unit.wide = take_conv(tensors, width, width, 7, dilation, true, Precision::coarse);
            unit.second = take_snake(tensors, width, 1);
            unit.narrow = take_conv(tensors, width, width, 1, 1, true, Precision::stage);
            unit.tail = reserve(unit.wide.reach(), width);
        }
        frame_size_ *= rate;
    }
    last_snake_ = take_snake(tensors, width, 1);
    const int64_t num_taps = 7;
    const float* weight = tensors.take(width * num_taps);  // [1, in, tap]
    last_conv_.num_in = width, last_conv_.num_out = 1, last_conv_.num_taps = num_taps;
    for (int64_t tap = 0; tap < num_taps; ++tap)
        for (int64_t i = 0; i < width; ++i) last_conv_.weight.push_back(weight[i * num_taps + tap]);
    last_conv_.bias.assign(1, *tensors.take(1));
    last_tail_ = reserve(last_conv_.reach(), width);
}

void CodecDecoder::allocate() {
    const CodecShape& shape = shape_;
    const int64_t frames = MAX_PASS_FRAMES, latent = shape.latent_dim;
    const int64_t q_width = shape.num_heads * shape.head_dim;
    const int64_t qkv_width = q_width + 2 * shape.num_kv_heads * shape.head_dim;
    vectors_.resize(frames * 2 * shape.codebook_width);
    quantized_.resize((pre_tail_.num_rows + frames) * shape.codebook_dim);
    latents_.resize(frames * latent);
    hidden_.resize(frames * shape.hidden_size);
    normal_.resize(frames * shape.hidden_size);
    wide_.resize(frames * std::max(qkv_width, 2 * shape.intermediate_size));
    mixed_.resize(frames * std::max(q_width, shape.intermediate_size));
    angles_.resize(frames * shape.head_dim);
    for (const Conv* conv : {&quantizer_out_, &pre_conv_, &input_proj_, &output_proj_})
        reserve_split(*conv, frames);
    for (const Block& block : blocks_)
        for (const Conv* conv : {&block.qkv, &block.out, &block.gate_up, &block.down})
            reserve_split(*conv, frames);
    int64_t rows = frames;
    for (Upsample& layer : upsampling_) {
        rows *= layer.widen.num_out / latent;
        up_rows_.emplace_back((layer.tail.num_rows + rows) * latent);
        for (const Conv* conv : {&layer.widen, &layer.expand, &layer.contract})
            reserve_split(*conv, rows);
    }
    up_normal_.resize(rows * latent);
    up_wide_.resize(rows * 4 * latent);
    first_input_.resize((first_tail_.num_rows + rows) * latent);
    reserve_split(first_conv_, rows);
    for (Stage& stage : stages_) {
        const int64_t width = stage.num_channels, row_bytes = stage.rate * width * 4;
        const int64_t weights = 4 * width * (4 * width * stage.rate + 24 * width);
        const int64_t bytes = weights > CACHED_WEIGHTS ? DEEP_BYTES : SHALLOW_BYTES;
        stage.input.resize((stage.tail.num_rows + rows) * stage.tail.width);
        stage.max_rows = std::max<int64_t>(1, std::min(rows, bytes / row_bytes));
        reserve_split(stage.widen, stage.max_rows);
        rows = stage.max_rows * stage.rate;
        for (const Unit& unit : stage.units) reserve_split(unit.wide, rows);
        stage.residual.resize(rows * width);
        stage.hidden.resize(rows * width);
        stage.active.resize((stage.units.back().tail.num_rows + rows) * width);
    }
    last_input_.resize((last_tail_.num_rows + rows) * last_conv_.num_in);
    const int64_t panel = std::max({kernels_.max_vectors * kernels_.num_lanes,
                                    kernels_.split.max_vectors * kernels_.split.num_lanes,
                                    kernels_.coarse.max_vectors * kernels_.coarse.num_lanes});
    sums_.assign(pool_.size(), Buffer<float>(MAX_CONV_ROWS * panel));
    scores_.assign(pool_.size(), Buffer<float>(shape.window));
}

}  // namespace vivace::codec
