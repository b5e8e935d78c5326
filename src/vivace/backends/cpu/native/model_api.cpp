// The C interface of the model, for ctypes (binding.py).
#include <new>
#include <system_error>

#include "api.h"
#include "model.h"

using namespace vivace;

namespace {

// Runs `work` while no other thread uses the model; exceptions become results.
template <class Work>
int guarded(Model* model, const Work& work) {
    try {
        std::lock_guard<std::mutex> lock(model->mutex);
        work();
        return OK;
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (...) {
        return BAD_ARGUMENT;
    }
}

}  // namespace

VIVACE_API int vivace_model_new(const ModelSpec* spec, const char* instructions, int num_threads,
                                Model** model) {
    const Kernels* kernels = find_kernels(instructions);
    if (!kernels) return BAD_ARGUMENT;
    try {
        *model = new Model(*spec, kernels, num_threads);
        return OK;
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (const std::system_error&) {
        return NO_THREADS;
    }
}

VIVACE_API void vivace_model_free(Model* model) { delete model; }

// Reads a prompt's rows [num_rows, hidden] into a new slot. Later prompts may begin with the same
// `num_shared` rows.
VIVACE_API int vivace_slot_new(Model* model, const SlotSpec* spec, const float* rows, int num_rows,
                               int num_shared, Slot** slot) {
    return guarded(model, [&] {
        auto made = model->make_slot(*spec);
        model->prefill(*made, rows, num_rows, num_shared);
        *slot = made.release();
    });
}

VIVACE_API void vivace_slot_free(Slot* slot) { delete slot; }

// Bytes of keys and values.
VIVACE_API int64_t vivace_slot_bytes(const Slot* slot, const Model* model) {
    return int64_t(slot->cache.pages.size()) * model->page_bytes();
}

// Bytes of the keys and values that are kept for later prompts.
VIVACE_API int64_t vivace_prefix_bytes(Model* model) {
    int64_t num_bytes = 0;
    guarded(model, [&] { num_bytes = int64_t(model->prefix_bytes()); });
    return num_bytes;
}

VIVACE_API int vivace_slot_extend(Model* model, Slot* slot, const float* vectors, int count,
                                  int num_own, int is_complete) {
    return guarded(model,
                   [&] { model->extend(*slot, vectors, count, num_own, is_complete != 0); });
}

// Attention weights of the rows from `first_query` on, [layers, heads, queries, num_keys]. `weights`
// holds zeros.
VIVACE_API int vivace_attention(Model* model, const float* rows, int num_rows, int first_query,
                                int first_key, int num_keys, float* weights) {
    return guarded(model, [&] {
        const int num_queries = num_rows - first_query;
        model->read_attention(rows, num_rows,
                              {first_query, first_key, num_keys, num_queries, weights});
    });
}

VIVACE_API int vivace_step(Model* model, Slot* const* slots, int count, int num_frames,
                           int64_t* codes, int32_t* lengths, int32_t* status, Place* places) {
    return guarded(model,
                   [&] { model->step(slots, count, num_frames, {codes, lengths, status, places}); });
}

// One product with the kernels of an instruction set, for tests and benchmarks: x [num_rows, in] to
// out [num_rows, matrix.out].
VIVACE_API int vivace_multiply(const char* instructions, const Matrix* matrix, const float* x,
                               int num_rows, float* out) {
    const Kernels* kernels = find_kernels(instructions);
    if (!kernels) return BAD_ARGUMENT;
    Buffers inputs;
    inputs.resize(num_rows, matrix->in);
    const Bytes scratch = allocate(scratch_bytes(num_rows, matrix->in));
    const size_t in = size_t(matrix->in), groups = size_t(num_groups(matrix->in));
    for (size_t row = 0; row < size_t(num_rows) && matrix->kind >= INT8; ++row)
        kernels->round_row(matrix->kind, x + row * in, matrix->in, inputs.codes.data() + row * in,
                           inputs.scale.data() + row * groups,
                           inputs.start.data() + row * groups * MAX_LANES);
    kernels->multiply({matrix,
                       {x, inputs.codes.data(), inputs.scale.data(), inputs.start.data()},
                       num_rows, 0, matrix->out, out, size_t(matrix->out), false, scratch.get()});
    return OK;
}

// One draw, for tests. Returns the code, or -1 if the scores are not finite.
VIVACE_API int vivace_draw(const float* logits, int size, const Shape* shape, uint64_t seed,
                           int frame, int codebook, const uint8_t* history, float penalty,
                           const uint8_t* is_banned) {
    DrawScratch scratch;
    const Draw draw =
        draw_code(logits, size, *shape, {seed, uint32_t(frame), uint32_t(codebook)}, history,
                  penalty, is_banned, scratch);
    return draw.is_finite ? draw.code : -1;
}

VIVACE_API float vivace_noise(uint64_t seed, int frame, int codebook, int code) {
    return gumbel_noise({seed, uint32_t(frame), uint32_t(codebook)}, uint32_t(code));
}
