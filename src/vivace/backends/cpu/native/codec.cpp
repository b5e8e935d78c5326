#include "codec.h"
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vivace::codec {

bool CodecDecoder::decode(float* state, int64_t num_past, const int64_t* codes, int64_t num_frames,
                          float* samples) {
    const int64_t num_codes = num_frames * shape_.num_quantizers;
    for (int64_t i = 0; i < num_codes; ++i)
        if (codes[i] < 0 || codes[i] >= shape_.codebook_size) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t done = 0; done < num_frames; done += MAX_PASS_FRAMES) {
        const Pass pass{state, num_past + done, std::min(MAX_PASS_FRAMES, num_frames - done),
                        codes + done * shape_.num_quantizers, samples + done * frame_size_};
        pool_.run([&](int thread) { run(pass, thread); });
    }
    return true;
}

// Each thread does a contiguous part of the work.
template <class Work>
void CodecDecoder::for_part(int64_t count, int thread, const Work& work) const {
    const int64_t end = count * (thread + 1) / pool_.size();
    for (int64_t i = count * thread / pool_.size(); i < end; ++i) work(i);
}

// All threads meet at the end.
template <class Work>
void CodecDecoder::share(int64_t count, int thread, const Work& work) {
    for_part(count, thread, work);
    pool_.barrier();
}

void CodecDecoder::convolve(const Conv& conv, const float* x, int64_t num_rows,
                            const Epilogue& epilogue, int thread) {
    const SplitKernels* split = conv.split_kernels;
    const Rows rows{x, split_.data(), num_rows + conv.reach()};
    if (split) {
        share(rows.count, thread, [&](int64_t row) {
            split->split_row(x + row * conv.num_in, conv.num_in, row, rows.count, split_.data());
        });
    }
    const auto run = split ? split->convolve : kernels_.convolve;
    // All rows of a panel before the next panel: the weights are read from memory once.
    const int64_t num_parts = (num_rows + MAX_CONV_ROWS - 1) / MAX_CONV_ROWS;
    if (split && split->begin) split->begin();
    for_part(conv.num_panels() * num_parts, thread, [&](int64_t i) {
        const int64_t begin = i % num_parts * MAX_CONV_ROWS;
        const int64_t end = std::min(begin + MAX_CONV_ROWS, num_rows);
        run(conv, rows, begin, end, i / num_parts, epilogue, sums_[thread].data());
    });
    if (split && split->end) split->end();
    pool_.barrier();
}

// The past of a layer before its new rows. Other threads write those rows at the same time.
void CodecDecoder::read_tail(const Pass& pass, const Tail& tail, float* rows, int thread) {
    if (thread == 0) std::copy_n(pass.state + tail.offset, tail.num_rows * tail.width, rows);
}

// The last of all rows become the past. Other threads may read the rows at the same time.
void CodecDecoder::keep_tail(const Pass& pass, const Tail& tail, const float* rows,
                             int64_t num_rows, int thread) {
    if (thread == 0)
        std::copy_n(rows + num_rows * tail.width, tail.num_rows * tail.width,
                    pass.state + tail.offset);
}

void CodecDecoder::run(const Pass& pass, int thread) {
    embed(pass, thread);
    transform(pass, thread);
    upsample(pass, thread);
    const Target first = target(0);
    const int64_t num_rows = pass.num_frames * up_ratio_;
    keep_tail(pass, first_tail_, first_input_.data(), num_rows, thread);
    read_tail(pass, first.tail, first.rows.data(), thread);
    Epilogue epilogue;
    epilogue.next = first.rows.data() + first.tail.num_rows * first.tail.width;
    epilogue.next_snake = first.snake.view();
    convolve(first_conv_, first_input_.data(), num_rows, epilogue, thread);
    float* samples = pass.samples;
    synthesize(pass, 0, num_rows, samples, thread);
}

void CodecDecoder::embed(const Pass& pass, int thread) {
    const CodecShape& shape = shape_;
    const int64_t width = shape.codebook_width;
    share(pass.num_frames, thread, [&](int64_t row) {
        float* vectors = vectors_.data() + row * 2 * width;
        std::fill_n(vectors, 2 * width, 0.0f);
        for (int64_t i = 0; i < shape.num_quantizers; ++i) {
            const int64_t code = pass.codes[row * shape.num_quantizers + i];
            const int64_t start = (i * shape.codebook_size + code) * width;
            float* to = vectors + (i < shape.num_semantic ? 0 : width);
            if (half_codebooks_.empty())
                for (int64_t j = 0; j < width; ++j) to[j] += codebooks_[start + j];
            else
                for (int64_t j = 0; j < width; ++j) to[j] += from_half(half_codebooks_[start + j]);
        }
        float* cos = angles_.data() + row * shape.head_dim;
        for (int64_t i = 0; i < shape.head_dim / 2; ++i) {
            const float angle = static_cast<float>(pass.num_past + row) * frequencies_[i];
            cos[i] = std::cos(angle);
            cos[shape.head_dim / 2 + i] = std::sin(angle);
        }
    });
    read_tail(pass, pre_tail_, quantized_.data(), thread);
    Epilogue epilogue;
    epilogue.out = quantized_.data() + pre_tail_.num_rows * pre_tail_.width;
    convolve(quantizer_out_, vectors_.data(), pass.num_frames, epilogue, thread);
    keep_tail(pass, pre_tail_, quantized_.data(), pass.num_frames, thread);
    epilogue.out = latents_.data();
    convolve(pre_conv_, quantized_.data(), pass.num_frames, epilogue, thread);
}

void CodecDecoder::transform(const Pass& pass, int thread) {
    const int64_t size = shape_.hidden_size, num_rows = pass.num_frames;
    Epilogue epilogue;
    epilogue.out = hidden_.data();
    convolve(input_proj_, latents_.data(), num_rows, epilogue, thread);
    for (const Block& block : blocks_) run_block(pass, block, thread);
    share(num_rows, thread, [&](int64_t row) {
        kernels_.rms_norm(hidden_.data() + row * size, size, final_norm_.data(), rms_eps_,
                          normal_.data() + row * size);
    });
    epilogue.out = latents_.data();
    convolve(output_proj_, normal_.data(), num_rows, epilogue, thread);
}

void CodecDecoder::run_block(const Pass& pass, const Block& block, int thread) {
    const CodecShape& shape = shape_;
    const int64_t size = shape.hidden_size, num_rows = pass.num_frames;
    const int64_t q_width = shape.num_heads * shape.head_dim;
    const int64_t qkv_width = q_width + 2 * shape.num_kv_heads * shape.head_dim;
    const auto normalize = [&](const Buffer<float>& weight) {
        share(num_rows, thread, [&](int64_t row) {
            kernels_.rms_norm(hidden_.data() + row * size, size, weight.data(), rms_eps_,
                              normal_.data() + row * size);
        });
    };
    Epilogue store, add;
    store.out = wide_.data();
    add.residual = add.out = hidden_.data();
    normalize(block.first_norm);
    convolve(block.qkv, normal_.data(), num_rows, store, thread);
    share(num_rows, thread, [&](int64_t row) { turn(pass, block, row); });
    const Attention attention{shape.num_heads, shape.num_kv_heads,           shape.head_dim,
                              shape.window,    capacity_, pass.state + block.ring};
    share(num_rows * shape.num_heads, thread, [&](int64_t i) {
        const int64_t row = i / shape.num_heads, head = i % shape.num_heads;
        kernels_.attend(attention, wide_.data() + row * qkv_width + head * shape.head_dim, head,
                        pass.num_past + row, scores_[thread].data(),
                        mixed_.data() + row * q_width + head * shape.head_dim);
    });
    add.scale = block.first_scale.data();
    convolve(block.out, mixed_.data(), num_rows, add, thread);
    normalize(block.second_norm);
    convolve(block.gate_up, normal_.data(), num_rows, store, thread);
    const int64_t inner = shape.intermediate_size;
    share(num_rows, thread, [&](int64_t row) {
        kernels_.gate(wide_.data() + row * 2 * inner, inner, mixed_.data() + row * inner);
    });
    add.scale = block.second_scale.data();
    convolve(block.down, mixed_.data(), num_rows, add, thread);
}

// Rotates the queries and keys of a row in place, and stores its keys and values.
void CodecDecoder::turn(const Pass& pass, const Block& block, int64_t row) {
    const int64_t size = shape_.head_dim, half = size / 2;
    const int64_t num_turned = shape_.num_heads + shape_.num_kv_heads;
    const int64_t kv_width = shape_.num_kv_heads * size;
    const float *cos = angles_.data() + row * size, *sin = cos + half;
    float* heads = wide_.data() + row * (num_turned * size + kv_width);
    for (int64_t head = 0; head < num_turned; ++head)
        for (int64_t i = 0; i < half; ++i) {
            float &first = heads[head * size + i], &second = heads[head * size + half + i];
            const float x = first, y = second;
            first = x * cos[i] - y * sin[i];
            second = y * cos[i] + x * sin[i];
        }
    const int64_t place = (pass.num_past + row) % capacity_;
    std::copy_n(heads + shape_.num_heads * size, 2 * kv_width,
                pass.state + block.ring + place * 2 * kv_width);
}

void CodecDecoder::upsample(const Pass& pass, int thread) {
    const int64_t width = shape_.latent_dim;
    const float* x = latents_.data();
    float* const last = first_input_.data() + first_tail_.num_rows * width;
    read_tail(pass, first_tail_, first_input_.data(), thread);
    int64_t num_rows = pass.num_frames;
    for (size_t i = 0; i < upsampling_.size(); ++i) {
        const Upsample& layer = upsampling_[i];
        float* rows = up_rows_[i].data();
        float* current = rows + layer.tail.num_rows * width;
        read_tail(pass, layer.tail, rows, thread);
        Epilogue widen, expand, contract;
        widen.out = current;
        convolve(layer.widen, x, num_rows, widen, thread);
        num_rows *= layer.widen.num_out / width;
        share(num_rows, thread, [&](int64_t row) {
            kernels_.depthwise_norm(rows + row * width, width, layer.tail.num_rows + 1,
                                    layer.taps.data(), layer.bias.data(), layer.norm_weight.data(),
                                    layer.norm_bias.data(), LAYER_NORM_EPS,
                                    up_normal_.data() + row * width);
        });
        keep_tail(pass, layer.tail, rows, num_rows, thread);
        expand.activation = Activation::gelu;
        expand.out = up_wide_.data();
        convolve(layer.expand, up_normal_.data(), num_rows, expand, thread);
        contract.scale = layer.gamma.data();
        contract.residual = current;
        contract.out = i + 1 < upsampling_.size() ? current : last;
        convolve(layer.contract, up_wide_.data(), num_rows, contract, thread);
        x = current;
    }
    if (upsampling_.empty())
        share(1, thread, [&](int64_t) { std::copy_n(x, num_rows * width, last); });
}

CodecDecoder::Target CodecDecoder::target(size_t stage) {
    if (stage == stages_.size()) return {last_input_, last_tail_, last_snake_};
    return {stages_[stage].input, stages_[stage].tail, stages_[stage].snake};
}

// Rows of the input of a stage to samples: deep before wide, so that rows stay in the cache.
void CodecDecoder::synthesize(const Pass& pass, size_t index, int64_t num_rows, float*& samples,
                              int thread) {
    const Target input = target(index);
    keep_tail(pass, input.tail, input.rows.data(), num_rows, thread);
    if (index == stages_.size()) {
        constexpr int64_t num_at_once = 32;
        share((num_rows + num_at_once - 1) / num_at_once, thread, [&](int64_t i) {
            kernels_.convolve_to_one(last_conv_, last_input_.data(), i * num_at_once,
                                     std::min((i + 1) * num_at_once, num_rows), samples);
        });
        samples += num_rows;
        return;
    }
    const Stage& stage = stages_[index];
    for (int64_t done = 0; done < num_rows; done += stage.max_rows) {
        const int64_t count = std::min(stage.max_rows, num_rows - done);
        run_stage(pass, index, stage.input.data() + done * stage.tail.width, count, thread);
        synthesize(pass, index + 1, count * stage.rate, samples, thread);
    }
}

void CodecDecoder::run_stage(const Pass& pass, size_t index, const float* x, int64_t num_rows,
                             int thread) {
    Stage& stage = stages_[index];
    const Target output = target(index + 1);
    const int64_t width = stage.num_channels;
    float *active = stage.active.data(), *residual = stage.residual.data();
    // The rows that the next convolution reads, after its past.
    const auto begin_next = [&](const Tail& tail, float* rows, const SnakeWeights& snake,
                                Epilogue& epilogue) {
        read_tail(pass, tail, rows, thread);
        epilogue.next = rows + tail.num_rows * width;
        epilogue.next_snake = snake.view();
    };
    Epilogue widen;
    widen.out = residual;
    begin_next(stage.units[0].tail, active, stage.units[0].first, widen);
    convolve(stage.widen, x, num_rows, widen, thread);
    num_rows *= stage.rate;
    for (size_t i = 0; i < stage.units.size(); ++i) {
        const Unit& unit = stage.units[i];
        keep_tail(pass, unit.tail, active, num_rows, thread);
        Epilogue wide, narrow;
        wide.activation = Activation::snake;
        wide.snake = unit.second.view();
        wide.out = stage.hidden.data();
        convolve(unit.wide, active, num_rows, wide, thread);
        narrow.residual = residual;
        if (i + 1 < stage.units.size()) {
            narrow.out = residual;
            begin_next(stage.units[i + 1].tail, active, stage.units[i + 1].first, narrow);
        } else {
            begin_next(output.tail, output.rows.data(), output.snake, narrow);
        }
        convolve(unit.narrow, stage.hidden.data(), num_rows, narrow, thread);
    }
}

}  // namespace vivace::codec
