#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vivace {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();

// Philox4x32-10.
void philox(uint32_t (&c)[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = uint64_t(c[0]) * 0xD2511F53, right = uint64_t(c[2]) * 0xCD9E8D57;
        c[0] = uint32_t(right >> 32) ^ c[1] ^ key0;
        c[2] = uint32_t(left >> 32) ^ c[3] ^ key1;
        c[1] = uint32_t(right);
        c[3] = uint32_t(left);
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

float gumbel(uint32_t word) {
    const float uniform = (float(word >> 9) + 0.5f) * 1.1920928955078125e-7f;  // 2^-23
    return -std::log(-std::log(uniform));
}

// Noise of consecutive codes; four codes share a counter.
class NoiseReader {
public:
    explicit NoiseReader(const Noise& noise) : noise_(noise) {}

    float at(uint32_t code) {
        const uint32_t block = code / 4;
        if (!has_block_ || block != block_) {
            words_[0] = block;
            words_[1] = noise_.codebook;
            words_[2] = noise_.frame;
            words_[3] = 0;
            philox(words_, uint32_t(noise_.seed), uint32_t(noise_.seed >> 32));
            block_ = block;
            has_block_ = true;
        }
        return gumbel(words_[code % 4]);
    }

private:
    Noise noise_;
    bool has_block_ = false;
    uint32_t block_ = 0;
    uint32_t words_[4] = {};
};

// Keeps the codes of the largest scores; ties with the last one are kept.
void keep_top_k(int top_k, DrawScratch& s) {
    if (top_k == 0 || size_t(top_k) >= s.scores.size()) return;
    s.ranked.assign(s.scores.begin(), s.scores.end());
    std::nth_element(s.ranked.begin(), s.ranked.begin() + (top_k - 1), s.ranked.end(),
                     [](float a, float b) { return a > b; });
    const float least = s.ranked[size_t(top_k - 1)];
    s.kept.erase(std::remove_if(s.kept.begin(), s.kept.end(),
                                [&](int32_t code) { return s.scores[size_t(code)] < least; }),
                 s.kept.end());
}

// Drops the least probable codes, as long as their probabilities sum to at most 1 - top_p.
void keep_top_p(float top_p, DrawScratch& s) {
    if (top_p >= 1.0f || s.kept.empty()) return;
    std::stable_sort(s.kept.begin(), s.kept.end(), [&](int32_t a, int32_t b) {
        return s.scores[size_t(a)] < s.scores[size_t(b)];
    });
    const float top = s.scores[size_t(s.kept.back())];
    s.ranked.clear();
    double total = 0;
    for (const int32_t code : s.kept) {
        s.ranked.push_back(std::exp(s.scores[size_t(code)] - top));
        total += s.ranked.back();
    }
    const float least = 1.0f - top_p;
    double mass = 0;
    size_t first = 0;
    for (; first + 1 < s.kept.size(); ++first) {
        mass += s.ranked[first] / float(total);
        if (!(float(mass) <= least)) break;
    }
    s.kept.erase(s.kept.begin(), s.kept.begin() + std::ptrdiff_t(first));
    std::sort(s.kept.begin(), s.kept.end());
}

}  // namespace

Draw draw_code(const float* logits, int size, const Shape& shape, const Noise& noise,
               const uint8_t* history, float penalty, const uint8_t* is_banned, DrawScratch& s) {
    const bool is_greedy = shape.temperature == 0;
    const float temperature = is_greedy ? 1.0f : shape.temperature;
    s.scores.resize(size_t(size));
    s.kept.clear();
    for (int i = 0; i < size; ++i) {
        float logit = logits[i];
        if (history && history[i]) logit = logit < 0 ? logit * penalty : logit / penalty;
        const float score = is_banned && is_banned[i] ? -INF : logit / temperature;
        if (!(score < INF)) return {0, false};  // also NaN
        s.scores[size_t(i)] = score;
        if (score > -INF) s.kept.push_back(i);
    }
    keep_top_k(shape.top_k, s);
    keep_top_p(shape.top_p, s);
    NoiseReader reader(noise);
    Draw best{0, false};
    float most = -INF;
    for (const int32_t code : s.kept) {
        const float noisy = s.scores[size_t(code)] + (is_greedy ? 0.0f : reader.at(uint32_t(code)));
        if (noisy > most) {
            most = noisy;
            best = {code, true};
        }
    }
    return best;
}

float gumbel_noise(const Noise& noise, uint32_t code) { return NoiseReader(noise).at(code); }

}  // namespace vivace
