// Talker and predictor: prompts into slots, and whole frames of several slots at once.
//
// All threads run the same program and meet at barriers. A matrix is divided by its outputs, the
// attention by slots and heads, and the draws by slots.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "sampling.h"
#include "threads.h"

namespace vivace {

constexpr int MAX_SLOTS = 8;   // slots of one pass
constexpr int MAX_ROWS = 64;   // rows of one sweep over the weights: a part of a prompt

// -- what Python passes; pointers stay valid as long as the model ------------------------------------

struct LayerSpec {
    const float *first_norm, *second_norm, *query_norm, *key_norm;
    Matrix qkv, o, gate, up, down;
};

struct StackSpec {
    int hidden, inter, num_layers, heads, kv_heads, head_dim;
    float eps;
    const float* norm;
    const float* frequencies;  // [head_dim / 2], radians per position
    const LayerSpec* layers;
};

struct ModelSpec {
    StackSpec talker, predictor;
    Matrix codec_head;
    Matrix projection;          // talker's width to predictor's; without weight: none
    const Matrix* heads;        // of codebooks 1 and up
    const Matrix* tables;       // embeddings of all codebooks: F32, BF16 or F16
    int num_groups, vocab, predictor_vocab, eos;
    const uint8_t *banned, *early_banned;  // [vocab]
    const float* pad_vector;               // [talker.hidden]
    int has_half_cache;
};

struct SlotSpec {
    Shape talker, predictor;
    float penalty;
    int min_frames, max_frames;
    int own_row, num_own;
    int watched_layer, watched_head;  // -1: none
    uint64_t seed;
};

enum Status : int { RUNNING = 0, WAITING = 1, STOP = 2, LENGTH = 3, FAILED = 4 };

struct Place {
    int32_t index;  // -1: none
    float share;
};

// -- state -------------------------------------------------------------------------------------------

struct Slot {
    SlotSpec spec;
    Cache cache;
    std::vector<float> hidden, code_sum;
    std::vector<float> texts;   // unread text vectors
    size_t num_read = 0;        // floats of `texts` that were read
    std::vector<uint8_t> history;
    bool has_code_sum = false, is_complete = false, is_finite = true;
    int num_frames = 0;
    int status = RUNNING;
    Place place{-1, 0.0f};
    std::vector<int32_t> codes;  // of the current frame

    bool can_go_on();
};

// Consecutive rows of one cache in a sweep.
struct Sequence {
    Cache* cache;
    int first, count, position;
    Slot* watched;  // null: no place is noted
};

// Inputs of products, for a number of rows.
struct Buffers {
    Floats x;
    std::vector<float> scale;
    std::vector<int8_t> codes;
    std::vector<int32_t> start;

    void resize(int rows, int width);
};

struct StepOut {
    int64_t* codes;  // [slots, num_frames, groups]
    int32_t *lengths, *status;
    Place* places;   // [slots, num_frames]
};

// Where the attention weights of all talker heads are written: [layers, heads, queries, num_keys].
// A key that a query does not see keeps its value.
struct AttentionRecord {
    int first_query, first_key, num_keys;  // rows
    int num_queries;
    float* weights;
};

class Model {
public:
    Model(const ModelSpec& spec, const Kernels* kernels, int num_threads);

    std::unique_ptr<Slot> make_slot(const SlotSpec& spec);
    // Keys and values of the first `num_shared` rows are kept for later prompts.
    void prefill(Slot& slot, const float* rows, int num_rows, int num_shared = 0);
    void extend(Slot& slot, const float* vectors, int count, int num_own, bool is_complete);
    void read_attention(const float* rows, int num_rows, const AttentionRecord& record);
    void step(Slot* const* slots, int count, int num_frames, const StepOut& out);

    size_t page_bytes() const { return talker_.layout.page_bytes(); }

    size_t prefix_bytes() const { return prefixes_.num_bytes(); }

    std::mutex mutex;  // one call at a time

private:
    struct Stack {
        StackSpec spec;
        PageLayout layout;
        std::vector<float> cos, sin;  // [MAX_ROWS, head_dim / 2], of the rows of a sweep
    };

    struct Local {  // of one thread
        Buffers inputs;
        Bytes scratch;  // of products
        std::vector<float> queries, weights;
        DrawScratch draw;
    };

    Stack make_stack(const StackSpec& spec) const;
    void plan_frame(Slot* const* slots, int count, const std::vector<int>& goals);
    void run_pass(Slot* const* slots, int count, int num_frames, int first, const StepOut& out);
    void run_frame(int thread);
    void predict(int thread);
    void finish_frame(int num_frames, const StepOut& out);
    void run_stack(int thread, Stack& stack, int rows, int first = 0);
    void run_layer(int thread, Stack& stack, const LayerSpec& layer, int index, int rows,
                   int first);
    void attend(int thread, Stack& stack, const LayerSpec& layer, int index, int first);
    void attend_head(Local& local, Stack& stack, const LayerSpec& layer, int index,
                     const Sequence& sequence, int head, int first);
    void store_keys(Stack& stack, const LayerSpec& layer, int index, const Sequence& sequence,
                    int head, float* scratch);
    void note_place(const Sequence& sequence, int length, int first_head, int group,
                    const float* weights) const;
    void record_weights(int layer, int first_head, int group, int row, int length,
                        const float* weights) const;
    void rotate(const Stack& stack, int row, float* head) const;
    void set_position(Stack& stack, int row, int position) const;
    Inputs prepare(int thread, int rows, int in, int kind, const float* x, const float* norm,
                   float eps);
    void multiply(int thread, const Matrix& matrix, const Inputs& inputs, int rows, float* out,
                  size_t stride, bool adds);
    void draw_first(int thread);
    void take_code(int thread, int codebook, const float* logits);
    void add_vector(int codebook, int code, float* to, float* sum) const;
    int first_output(int out, int thread) const;
    void reserve_weights(int length);

    ModelSpec spec_;
    const Kernels* kernels_;
    Pool pool_;
    Stack talker_, predictor_;
    std::vector<Local> locals_;
    Buffers shared_;
    Floats x_, qkv_, attended_, gated_, up_, wide_, gathered_;
    std::vector<float> logits_;
    std::vector<Cache> predictor_caches_;
    PrefixCache prefixes_;
    // The plan of a sweep and of a frame, written by thread 0.
    std::vector<Sequence> sequences_;
    std::vector<Slot*> reading_, ready_, active_;
    std::vector<int> ready_index_, active_index_;
    bool is_over_ = false;
    const AttentionRecord* record_ = nullptr;  // of `read_attention`
};

}  // namespace vivace
