#include "model.h"

#include <algorithm>
#include <cmath>

namespace vivace {

void Buffers::resize(int rows, int width) {
    const size_t groups = size_t(num_groups(width)), count = size_t(rows);
    x.resize(count * size_t(width));
    codes.resize(count * size_t(width));
    scale.resize(count * groups);
    start.resize(count * groups * MAX_LANES);
}

// A frame needs a text vector, unless the text is complete or the slot was just prefilled.
bool Slot::can_go_on() {
    if (status > WAITING) return false;
    const bool is_known = !has_code_sum || num_read < texts.size() || is_complete;
    status = is_known ? RUNNING : WAITING;
    return is_known;
}

Model::Model(const ModelSpec& spec, const Kernels* kernels, int num_threads)
    : spec_(spec),
      kernels_(kernels),
      pool_(num_threads),
      talker_(make_stack(spec.talker)),
      predictor_(make_stack(spec.predictor)),
      prefixes_(size_t(spec.talker.hidden), talker_.layout) {
    int width = 0, heads = 0, queries = 0, inter = 0;
    for (const StackSpec* each : {&spec_.talker, &spec_.predictor}) {
        queries = std::max(queries, each->heads * each->head_dim);
        heads = std::max(heads, (each->heads + 2 * each->kv_heads) * each->head_dim);
        inter = std::max(inter, each->inter);
        width = std::max({width, each->hidden, inter, queries});
    }
    const int hidden = std::max(spec_.talker.hidden, spec_.predictor.hidden);
    shared_.resize(MAX_ROWS, width);
    locals_.resize(size_t(pool_.size()));
    for (Local& local : locals_) {
        local.inputs.resize(1, width);
        local.scratch = allocate(scratch_bytes(MAX_ROWS, width));
        local.queries.resize(size_t(queries) + size_t(std::max(spec_.talker.head_dim,
                                                               spec_.predictor.head_dim)));
        const size_t vocab = size_t(std::max(spec_.vocab, spec_.predictor_vocab));
        local.draw.scores.reserve(vocab);  // draws allocate no memory
        local.draw.ranked.reserve(vocab);
        local.draw.kept.reserve(vocab);
    }
    reserve_weights(PAGE);
    x_.resize(size_t(MAX_ROWS) * hidden);
    qkv_.resize(size_t(MAX_ROWS) * heads);
    attended_.resize(size_t(MAX_ROWS) * queries);
    gated_.resize(size_t(MAX_ROWS) * inter);
    up_.resize(size_t(MAX_ROWS) * inter);
    wide_.resize(size_t(2 * MAX_SLOTS) * spec_.talker.hidden);
    gathered_.resize(size_t(MAX_SLOTS) * hidden);
    logits_.resize(size_t(MAX_SLOTS) * std::max(spec_.vocab, spec_.predictor_vocab));
    predictor_caches_.resize(MAX_SLOTS);
    sequences_.reserve(MAX_SLOTS);
    for (auto* slots : {&reading_, &ready_, &active_}) slots->reserve(MAX_SLOTS);
    for (auto* indices : {&ready_index_, &active_index_}) indices->reserve(MAX_SLOTS);
    for (Cache& cache : predictor_caches_)
        cache.reserve(spec_.num_groups, predictor_.layout.page_bytes());
}

Model::Stack Model::make_stack(const StackSpec& spec) const {
    Stack stack;
    stack.spec = spec;
    stack.layout.block_bytes = size_t(PAGE) * spec.head_dim * (spec_.has_half_cache ? 2 : 4);
    stack.layout.num_blocks = size_t(2) * spec.kv_heads * spec.num_layers;
    stack.cos.resize(size_t(MAX_ROWS) * spec.head_dim / 2);
    stack.sin.resize(stack.cos.size());
    return stack;
}

void Model::reserve_weights(int length) {
    const size_t group = size_t(std::max(spec_.talker.heads / spec_.talker.kv_heads,
                                         spec_.predictor.heads / spec_.predictor.kv_heads));
    const size_t rounded = (size_t(length) + PAGE - 1) / PAGE * PAGE;
    for (Local& local : locals_)
        if (local.weights.size() < group * rounded) local.weights.resize(group * rounded);
}

// -- slots -------------------------------------------------------------------------------------------

std::unique_ptr<Slot> Model::make_slot(const SlotSpec& spec) {
    auto slot = std::make_unique<Slot>();
    slot->spec = spec;
    slot->hidden.resize(size_t(spec_.talker.hidden));
    slot->code_sum.resize(size_t(spec_.talker.hidden));
    slot->history.resize(size_t(spec_.vocab));
    slot->codes.resize(size_t(spec_.num_groups));
    return slot;
}

void Model::extend(Slot& slot, const float* vectors, int count, int num_own, bool is_complete) {
    slot.texts.erase(slot.texts.begin(), slot.texts.begin() + std::ptrdiff_t(slot.num_read));
    slot.num_read = 0;
    slot.texts.insert(slot.texts.end(), vectors, vectors + size_t(count) * spec_.talker.hidden);
    slot.spec.num_own += num_own;
    slot.is_complete = is_complete;
}

void Model::prefill(Slot& slot, const float* rows, int num_rows, int num_shared) {
    const size_t hidden = size_t(spec_.talker.hidden);
    num_shared = std::min(num_shared, num_rows - 1);  // the last row gives the hidden state
    slot.cache.reserve(num_rows, page_bytes());
    reserve_weights(num_rows);
    const int num_known = prefixes_.restore(rows, num_shared, slot.cache);
    pool_.run([&](int thread) {
        for (int start = num_known; start < num_rows; start += MAX_ROWS) {
            const int count = std::min(MAX_ROWS, num_rows - start);
            if (thread == 0) {
                memcpy(x_.data(), rows + start * hidden, count * hidden * sizeof(float));
                for (int row = 0; row < count; ++row) set_position(talker_, row, start + row);
                sequences_.assign(1, {&slot.cache, 0, count, start, nullptr});
            }
            pool_.barrier();
            const bool is_last = start + count == num_rows;
            run_stack(thread, talker_, count, record_ ? 0 : is_last ? count - 1 : count);
            if (thread == 0) {
                slot.cache.length = start + count;
                kernels_->normalise(x_.data() + (count - 1) * hidden, spec_.talker.norm,
                                    int(hidden), spec_.talker.eps, slot.hidden.data());
            }
            pool_.barrier();
        }
    });
    if (num_known < num_shared) prefixes_.keep(rows, num_shared, slot.cache);
}

// Reads rows like a prompt, into keys and values that are dropped.
void Model::read_attention(const float* rows, int num_rows, const AttentionRecord& record) {
    const auto slot = make_slot(SlotSpec{});
    record_ = &record;
    try {
        prefill(*slot, rows, num_rows);
    } catch (...) {
        record_ = nullptr;
        throw;
    }
    record_ = nullptr;
}

// -- a step ------------------------------------------------------------------------------------------

void Model::step(Slot* const* slots, int count, int num_frames, const StepOut& out) {
    for (int first = 0; first < count; first += MAX_SLOTS)
        run_pass(slots + first, std::min(MAX_SLOTS, count - first), num_frames, first, out);
}

void Model::run_pass(Slot* const* slots, int count, int num_frames, int first,
                     const StepOut& all) {
    const size_t groups = size_t(spec_.num_groups), frames = size_t(num_frames);
    const StepOut out{all.codes + first * frames * groups, all.lengths + first, all.status + first,
                      all.places + first * frames};
    std::vector<int> goals(size_t(count), 0);  // frames after which a slot goes on
    for (int i = 0; i < count; ++i) {
        Slot& slot = *slots[i];
        const int most = std::min(num_frames, slot.spec.max_frames - slot.num_frames);
        slot.cache.reserve(slot.cache.length + most, page_bytes());
        reserve_weights(slot.cache.length + most);
        goals[size_t(i)] = slot.num_frames;
        out.lengths[i] = 0;
    }
    pool_.run([&](int thread) {
        for (int frame = 0; frame < num_frames; ++frame) {
            if (thread == 0) {
                plan_frame(slots, count, goals);
                for (int& goal : goals) ++goal;
            }
            pool_.barrier();
            if (is_over_) break;
            run_frame(thread);
            if (thread == 0) finish_frame(num_frames, out);
        }
    });
    for (int i = 0; i < count; ++i) out.status[i] = slots[i]->status;
}

// Chooses the slots of the next frame, and writes the talker's rows.
void Model::plan_frame(Slot* const* slots, int count, const std::vector<int>& goals) {
    const size_t hidden = size_t(spec_.talker.hidden);
    ready_.clear();
    ready_index_.clear();
    reading_.clear();
    sequences_.clear();
    for (int i = 0; i < count; ++i) {
        Slot& slot = *slots[i];
        if (!slot.can_go_on() || slot.num_frames != goals[size_t(i)]) continue;
        ready_.push_back(&slot);
        ready_index_.push_back(i);
        slot.is_finite = true;
        if (!slot.has_code_sum) continue;
        const int row = int(reading_.size()), position = slot.cache.length++;
        const bool has_text = slot.num_read < slot.texts.size();
        const float* text = has_text ? slot.texts.data() + slot.num_read : spec_.pad_vector;
        if (has_text) slot.num_read += hidden;
        for (size_t i = 0; i < hidden; ++i) x_[row * hidden + i] = slot.code_sum[i] + text[i];
        set_position(talker_, row, position);
        slot.place = {-1, 0.0f};
        Slot* watched = slot.spec.watched_layer >= 0 ? &slot : nullptr;
        sequences_.push_back({&slot.cache, row, 1, position, watched});
        reading_.push_back(&slot);
    }
    is_over_ = ready_.empty();
}

void Model::run_frame(int thread) {
    const StackSpec& talker = spec_.talker;
    const size_t hidden = size_t(talker.hidden);
    const int num_threads = pool_.size();
    if (!reading_.empty()) {
        run_stack(thread, talker_, int(reading_.size()));
        for (size_t row = size_t(thread); row < reading_.size(); row += size_t(num_threads))
            kernels_->normalise(x_.data() + row * hidden, talker.norm, talker.hidden, talker.eps,
                                reading_[row]->hidden.data());
        pool_.barrier();
    }
    const int count = int(ready_.size());
    for (size_t i = size_t(thread); i < ready_.size(); i += size_t(num_threads))
        memcpy(gathered_.data() + i * hidden, ready_[i]->hidden.data(), hidden * sizeof(float));
    pool_.barrier();
    const Matrix& head = spec_.codec_head;
    const Inputs inputs =
        prepare(thread, count, head.in, head.kind, gathered_.data(), nullptr, 0.0f);
    multiply(thread, head, inputs, count, logits_.data(), size_t(head.out), false);
    pool_.barrier();
    draw_first(thread);
    pool_.barrier();
    if (thread == 0) {
        active_.clear();
        active_index_.clear();
        for (size_t i = 0; i < ready_.size(); ++i) {
            Slot& slot = *ready_[i];
            if (!slot.is_finite) slot.status = FAILED;
            else if (slot.codes[0] == spec_.eos) slot.status = STOP;
            if (slot.status != RUNNING) continue;
            active_.push_back(&slot);
            active_index_.push_back(ready_index_[i]);
        }
    }
    pool_.barrier();
    if (!active_.empty()) predict(thread);
}

void Model::draw_first(int thread) {
    for (size_t i = size_t(thread); i < ready_.size(); i += size_t(pool_.size())) {
        Slot& slot = *ready_[i];
        const SlotSpec& spec = slot.spec;
        const bool is_early = slot.num_frames < spec.min_frames;
        const Draw draw = draw_code(
            logits_.data() + i * size_t(spec_.vocab), spec_.vocab, spec.talker,
            {spec.seed, uint32_t(slot.num_frames), 0}, slot.history.data(), spec.penalty,
            is_early ? spec_.early_banned : spec_.banned, locals_[size_t(thread)].draw);
        slot.codes[0] = draw.code;
        slot.is_finite = draw.is_finite;
    }
}

// Codebooks 1 and up. The first sweep has two rows per slot: hidden state and codebook 0.
void Model::predict(int thread) {
    const StackSpec& inner = spec_.predictor;
    const size_t width = size_t(spec_.talker.hidden), hidden = size_t(inner.hidden);
    const size_t num_threads = size_t(pool_.size());
    const int count = int(active_.size());
    const bool has_projection = spec_.projection.weight != nullptr;
    float* rows_in = has_projection ? wide_.data() : x_.data();
    for (int g = 1; g < spec_.num_groups; ++g) {
        const int per_slot = g == 1 ? 2 : 1, rows = count * per_slot;
        for (size_t i = size_t(thread); i < size_t(count); i += num_threads) {
            Slot& slot = *active_[i];
            float* to = rows_in + i * size_t(per_slot) * width;
            if (g == 1) {
                memcpy(to, slot.hidden.data(), width * sizeof(float));
                to += width;
                std::fill(slot.code_sum.begin(), slot.code_sum.end(), 0.0f);
            }
            add_vector(g - 1, slot.codes[size_t(g - 1)], to, slot.code_sum.data());
        }
        if (thread == 0) {
            sequences_.clear();
            for (int i = 0; i < count; ++i) {
                const int position = g == 1 ? 0 : g;
                sequences_.push_back({&predictor_caches_[size_t(i)], i * per_slot, per_slot,
                                      position, nullptr});
                for (int j = 0; j < per_slot; ++j)
                    set_position(predictor_, i * per_slot + j, position + j);
            }
        }
        pool_.barrier();
        if (has_projection) {
            const Matrix& m = spec_.projection;
            const Inputs wide = prepare(thread, rows, m.in, m.kind, rows_in, nullptr, 0.0f);
            multiply(thread, m, wide, rows, x_.data(), hidden, false);
            pool_.barrier();
        }
        run_stack(thread, predictor_, rows);
        for (size_t i = size_t(thread); i < size_t(count); i += num_threads)
            kernels_->normalise(x_.data() + (i * size_t(per_slot) + size_t(per_slot) - 1) * hidden,
                                inner.norm, inner.hidden, inner.eps,
                                gathered_.data() + i * hidden);
        pool_.barrier();
        const Matrix& head = spec_.heads[g - 1];
        const Inputs inputs =
            prepare(thread, count, head.in, head.kind, gathered_.data(), nullptr, 0.0f);
        multiply(thread, head, inputs, count, logits_.data(), size_t(head.out), false);
        pool_.barrier();
        take_code(thread, g, logits_.data());
    }
    for (size_t i = size_t(thread); i < size_t(count); i += num_threads) {
        Slot& slot = *active_[i];
        add_vector(spec_.num_groups - 1, slot.codes.back(), nullptr, slot.code_sum.data());
    }
    pool_.barrier();
}

void Model::take_code(int thread, int codebook, const float* logits) {
    for (size_t i = size_t(thread); i < active_.size(); i += size_t(pool_.size())) {
        Slot& slot = *active_[i];
        const Draw draw =
            draw_code(logits + i * size_t(spec_.predictor_vocab), spec_.predictor_vocab,
                      slot.spec.predictor,
                      {slot.spec.seed, uint32_t(slot.num_frames), uint32_t(codebook)}, nullptr,
                      1.0f, nullptr, locals_[size_t(thread)].draw);
        slot.codes[size_t(codebook)] = draw.code;
        slot.is_finite = slot.is_finite && draw.is_finite;
    }
}

// Writes a code's embedding to `to` (null: nowhere) and adds it to `sum`.
void Model::add_vector(int codebook, int code, float* to, float* sum) const {
    const Matrix& table = spec_.tables[codebook];
    const size_t start = size_t(code) * size_t(table.in);
    const float* floats = static_cast<const float*>(table.weight) + start;
    const uint16_t* halves = static_cast<const uint16_t*>(table.weight) + start;
    for (int i = 0; i < table.in; ++i) {
        const float value = table.kind == F32    ? floats[i]
                            : table.kind == BF16 ? from_bf16(halves[i])
                                                 : from_half(halves[i]);
        if (to) to[i] = value;
        sum[i] += value;
    }
}

void Model::finish_frame(int num_frames, const StepOut& out) {
    for (size_t i = 0; i < active_.size(); ++i) {
        Slot& slot = *active_[i];
        if (!slot.is_finite) {
            slot.status = FAILED;
            continue;
        }
        const size_t index = size_t(active_index_[i]);
        const size_t at = index * size_t(num_frames) + size_t(out.lengths[index]++);
        for (size_t g = 0; g < slot.codes.size(); ++g)
            out.codes[at * slot.codes.size() + g] = slot.codes[g];
        out.places[at] = slot.place;
        slot.history[size_t(slot.codes[0])] = 1;
        slot.has_code_sum = true;
        if (++slot.num_frames >= slot.spec.max_frames) slot.status = LENGTH;
    }
    active_.clear();
}

// -- layers ------------------------------------------------------------------------------------------

// Rows before `first` are only read by the attention of later rows: the last layer computes their
// keys and values, and nothing else.
void Model::run_stack(int thread, Stack& stack, int rows, int first) {
    const int last = stack.spec.num_layers - 1;
    for (int i = 0; i <= last; ++i)
        run_layer(thread, stack, stack.spec.layers[i], i, rows, i == last ? first : 0);
}

void Model::run_layer(int thread, Stack& stack, const LayerSpec& layer, int index, int rows,
                      int first) {
    const StackSpec& s = stack.spec;
    const size_t queries = size_t(s.heads) * s.head_dim;
    const size_t hidden = size_t(s.hidden), inter = size_t(s.inter);
    float* x = x_.data() + size_t(first) * hidden;
    Inputs in = prepare(thread, rows, s.hidden, layer.qkv.kind, x_.data(), layer.first_norm, s.eps);
    multiply(thread, layer.qkv, in, rows, qkv_.data(), size_t(layer.qkv.out), false);
    pool_.barrier();
    attend(thread, stack, layer, index, first);
    pool_.barrier();
    rows -= first;
    if (rows == 0) return;
    in = prepare(thread, rows, int(queries), layer.o.kind, attended_.data() + first * queries,
                 nullptr, 0.0f);
    multiply(thread, layer.o, in, rows, x, hidden, true);
    pool_.barrier();
    in = prepare(thread, rows, s.hidden, layer.gate.kind, x, layer.second_norm, s.eps);
    multiply(thread, layer.gate, in, rows, gated_.data(), inter, false);
    multiply(thread, layer.up, in, rows, up_.data(), inter, false);
    const int begin = first_output(s.inter, thread), end = first_output(s.inter, thread + 1);
    for (size_t row = 0; row < size_t(rows); ++row)  // this thread's own outputs
        kernels_->gate(gated_.data() + row * inter + begin, up_.data() + row * inter + begin,
                       end - begin);
    pool_.barrier();
    in = prepare(thread, rows, s.inter, layer.down.kind, gated_.data(), nullptr, 0.0f);
    multiply(thread, layer.down, in, rows, x, hidden, true);
    pool_.barrier();
}

// The first output of a thread's part of a matrix; parts are multiples of 4 outputs.
int Model::first_output(int out, int thread) const {
    if (thread == pool_.size()) return out;
    return int(int64_t(out / 4) * thread / pool_.size()) * 4;
}

// Normalises and rounds rows for a product. One row: each thread does it for itself, which takes
// less time than a barrier.
Inputs Model::prepare(int thread, int rows, int in, int kind, const float* x, const float* norm,
                      float eps) {
    const bool is_alone = rows == 1;
    Buffers& to = is_alone ? locals_[size_t(thread)].inputs : shared_;
    const size_t width = size_t(in), groups = size_t(num_groups(in));
    for (int i = is_alone ? 0 : thread; i < rows; i += is_alone ? 1 : pool_.size()) {
        const size_t row = size_t(i);
        const float* from = x + row * width;
        if (norm) {
            kernels_->normalise(from, norm, in, eps, to.x.data() + row * width);
            from = to.x.data() + row * width;
        }
        if (kind >= INT8)
            kernels_->round_row(kind, from, in, to.codes.data() + row * width,
                                to.scale.data() + row * groups,
                                to.start.data() + row * groups * MAX_LANES);
    }
    if (!is_alone && (norm || kind >= INT8)) pool_.barrier();
    return {norm ? to.x.data() : x, to.codes.data(), to.scale.data(), to.start.data()};
}

void Model::multiply(int thread, const Matrix& matrix, const Inputs& inputs, int rows, float* out,
                     size_t stride, bool adds) {
    kernels_->multiply({&matrix, inputs, rows, first_output(matrix.out, thread),
                        first_output(matrix.out, thread + 1), out, stride, adds,
                        locals_[size_t(thread)].scratch.get()});
}

// -- attention ---------------------------------------------------------------------------------------

void Model::set_position(Stack& stack, int row, int position) const {
    const int half = stack.spec.head_dim / 2;
    for (int i = 0; i < half; ++i) {
        const float angle = float(position) * stack.spec.frequencies[i];
        stack.cos[size_t(row) * half + i] = std::cos(angle);
        stack.sin[size_t(row) * half + i] = std::sin(angle);
    }
}

void Model::rotate(const Stack& stack, int row, float* head) const {
    const int half = stack.spec.head_dim / 2;
    const float* cos = stack.cos.data() + size_t(row) * half;
    const float* sin = stack.sin.data() + size_t(row) * half;
    for (int i = 0; i < half; ++i) {
        const float first = head[i], second = head[i + half];
        head[i] = first * cos[i] - second * sin[i];
        head[i + half] = second * cos[i] + first * sin[i];
    }
}

// Writes the attention of the rows from `first` on.
void Model::attend(int thread, Stack& stack, const LayerSpec& layer, int index, int first) {
    const int kv_heads = stack.spec.kv_heads, num_tasks = int(sequences_.size()) * kv_heads;
    for (int task = thread; task < num_tasks; task += pool_.size())
        attend_head(locals_[size_t(thread)], stack, layer, index,
                    sequences_[size_t(task / kv_heads)], task % kv_heads, first);
}

void Model::attend_head(Local& local, Stack& stack, const LayerSpec& layer, int index,
                        const Sequence& sequence, int head, int first) {
    const StackSpec& s = stack.spec;
    const int group = s.heads / s.kv_heads;
    const size_t dim = size_t(s.head_dim), queries = size_t(s.heads) * dim;
    const size_t stride = queries + 2 * size_t(s.kv_heads) * dim;
    const size_t keys = (size_t(index) * s.kv_heads + head) * 2 * stack.layout.block_bytes;
    store_keys(stack, layer, index, sequence, head, local.queries.data());
    for (int i = std::max(0, first - sequence.first); i < sequence.count; ++i) {
        const size_t row = size_t(sequence.first + i);
        const float* from = qkv_.data() + row * stride + size_t(head) * group * dim;
        for (int j = 0; j < group; ++j) {
            float* query = local.queries.data() + j * dim;
            kernels_->normalise(from + j * dim, layer.query_norm, s.head_dim, s.eps, query);
            rotate(stack, int(row), query);
        }
        const int length = sequence.position + i + 1;
        kernels_->attend({local.queries.data(), group, s.head_dim,
                          attended_.data() + row * queries + size_t(head) * group * dim,
                          sequence.cache->pages.data(), keys, keys + stack.layout.block_bytes, length,
                          spec_.has_half_cache != 0, local.weights.data()});
        if (sequence.watched && sequence.watched->spec.watched_layer == index)
            note_place(sequence, length, head * group, group, local.weights.data());
        if (record_)
            record_weights(index, head * group, group, length - 1, length, local.weights.data());
    }
}

// Stores the keys and values of a sequence's rows, of one head.
void Model::store_keys(Stack& stack, const LayerSpec& layer, int index, const Sequence& sequence,
                       int head, float* scratch) {
    const StackSpec& s = stack.spec;
    const size_t dim = size_t(s.head_dim), kv_width = size_t(s.kv_heads) * dim;
    const size_t stride = size_t(s.heads) * dim + 2 * kv_width;
    const size_t start = (size_t(index) * s.kv_heads + head) * 2 * stack.layout.block_bytes;
    const size_t row_bytes = stack.layout.row_bytes();
    for (int i = 0; i < sequence.count; ++i) {
        const int row = sequence.first + i, position = sequence.position + i;
        const float* key = qkv_.data() + size_t(row) * stride + size_t(s.heads) * dim + head * dim;
        char* to = sequence.cache->pages[size_t(position / PAGE)] + start +
                   size_t(position % PAGE) * row_bytes;
        kernels_->normalise(key, layer.key_norm, s.head_dim, s.eps, scratch);
        rotate(stack, row, scratch);
        if (spec_.has_half_cache) {
            kernels_->store_half(scratch, s.head_dim, to);
            kernels_->store_half(key + kv_width, s.head_dim, to + stack.layout.block_bytes);
        } else {
            memcpy(to, scratch, row_bytes);
            memcpy(to + stack.layout.block_bytes, key + kv_width, row_bytes);
        }
    }
}

void Model::record_weights(int layer, int first_head, int group, int row, int length,
                           const float* weights) const {
    const AttentionRecord& to = *record_;
    const int count = std::min(to.num_keys, length - to.first_key);
    if (row < to.first_query || count <= 0) return;
    for (int i = 0; i < group; ++i) {
        const size_t head = size_t(layer) * spec_.talker.heads + first_head + i;
        const size_t at = head * to.num_queries + (row - to.first_query);
        const float* from = weights + size_t(i) * length + to.first_key;
        std::copy(from, from + count, to.weights + at * to.num_keys);
    }
}

// The text id with the most attention of the watched head, if it is one of these heads.
void Model::note_place(const Sequence& sequence, int length, int first_head, int group,
                       const float* weights) const {
    Slot& slot = *sequence.watched;
    const int head = slot.spec.watched_head - first_head;
    if (head < 0 || head >= group) return;
    const float* found = weights + size_t(head) * length;
    const int end = std::min(slot.spec.own_row + slot.spec.num_own, length);
    float most = -1.0f, total = 0.0f;
    for (int i = slot.spec.own_row; i < end; ++i) {
        total += found[i];
        if (found[i] > most) {
            most = found[i];
            slot.place.index = i - slot.spec.own_row;
        }
    }
    slot.place.share = total;
}

}  // namespace vivace
