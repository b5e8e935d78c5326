// Draws a code from logits: the arithmetic of sampling.py, for one row.
#pragma once

#include <cstdint>
#include <vector>

namespace vivace {

struct Shape {
    float temperature;  // 0 is greedy
    int32_t top_k;      // 0 keeps every code
    float top_p;
};

struct Noise {
    uint64_t seed;
    uint32_t frame, codebook;
};

struct Draw {
    int32_t code;
    bool is_finite;
};

// Space for one thread's draws.
struct DrawScratch {
    std::vector<float> scores, ranked;
    std::vector<int32_t> kept;
};

// Draws from `size` logits. Codes with `is_banned` are left out; `is_banned` may be null. Codes of
// `history` (null: none) are penalised.
Draw draw_code(const float* logits, int size, const Shape& shape, const Noise& noise,
               const uint8_t* history, float penalty, const uint8_t* is_banned,
               DrawScratch& scratch);

// Gumbel noise of one code.
float gumbel_noise(const Noise& noise, uint32_t code);

}  // namespace vivace
