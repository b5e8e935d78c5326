// Compares the products of two instruction sets: compare_kernels FIRST SECOND LARGEST_DIFFERENCE.
// Products of parts of the outputs are compared with those of one output at a time, bit by bit.
// test_emulated_kernels.py compiles it with the kernels and runs it in an emulator.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels.h"

using namespace vivace;

namespace {

uint32_t state = 1;
float draw() {  // -1 to 1
    state = state * 1664525u + 1013904223u;
    return float(int32_t(state)) / 2147483648.0f;
}

// Adds the products to 1, for `part` outputs per call: an output that is computed twice differs.
std::vector<float> multiply(const Kernels& kernels, const Matrix& m, const std::vector<float>& x,
                            int rows, int part) {
    const size_t in = size_t(m.in), groups = size_t(num_groups(m.in));
    std::vector<int8_t> codes(rows * in);
    std::vector<float> scale(rows * groups), out(size_t(rows) * m.out, 1.0f);
    std::vector<int32_t> start(rows * groups * MAX_LANES);
    std::vector<char> scratch(scratch_bytes(rows, m.in) + 64);
    char* aligned = scratch.data() + (64 - uintptr_t(scratch.data()) % 64);
    for (size_t row = 0; row < size_t(rows) && m.kind >= INT8; ++row)
        kernels.round_row(m.kind, x.data() + row * in, m.in, codes.data() + row * in,
                          scale.data() + row * groups, start.data() + row * groups * MAX_LANES);
    for (int o = 0; o < m.out; o += part)
        kernels.multiply({&m, {x.data(), codes.data(), scale.data(), start.data()}, rows, o,
                          std::min(o + part, m.out), out.data(), size_t(m.out), true, aligned});
    return out;
}

}  // namespace

int main(int, char** arguments) {
    const Kernels *first = find_kernels(arguments[1]), *second = find_kernels(arguments[2]);
    if (!first || !second) return std::puts("an instruction set is missing"), 2;
    const float limit = float(std::atof(arguments[3]));
    int num_failed = 0, num_compared = 0;
    for (const int kind : {F32, F16, INT8, INT4})
        for (const int in : {32, 84, 160, 1024})
            for (const int out : {1, 3, 4, 11, 37})
                for (int rows = 1; rows <= 9; ++rows) {
                    if (kind == INT4 && in % GROUP) continue;
                    std::vector<int8_t> weight(size_t(out) * in);
                    std::vector<float> scale(out), x(size_t(rows) * in);
                    std::vector<uint16_t> halves(size_t(out) * num_groups(in));
                    for (int8_t& each : weight) each = int8_t(127 * draw());
                    for (float& each : scale) each = 0.01f * (1.5f + draw());
                    for (uint16_t& each : halves) each = to_half(0.01f * (1.5f + draw()));
                    for (float& each : x) each = draw();
                    std::vector<float> floats(weight.size());
                    std::vector<uint16_t> float16s(weight.size());
                    for (size_t i = 0; i < weight.size(); ++i)
                        float16s[i] = to_half(0.1f * draw()), floats[i] = from_half(float16s[i]);
                    Matrix m;
                    m.kind = kind, m.out = out, m.in = in, m.weight = weight.data();
                    if (kind == F32) m.weight = floats.data();
                    if (kind == F16) m.weight = float16s.data();
                    m.scale = kind == INT8 ? static_cast<void*>(scale.data()) : halves.data();
                    const auto a = multiply(*first, m, x, rows, 1);
                    const auto b = multiply(*second, m, x, rows, out);
                    for (size_t i = 0; i < a.size(); ++i, ++num_compared)
                        num_failed += !(std::fabs(a[i] - b[i]) <= limit * (1.0f + std::fabs(b[i])));
                    for (const int part : {out, 7, 13})
                        num_failed += multiply(*first, m, x, rows, part) != a;
                }
    std::printf("%d of %d numbers differ\n", num_failed, num_compared);
    return num_failed != 0;
}
