#include "elements.h"

#include <cstring>

#include "instruction_set.h"

namespace pomona {

namespace {

/// A row whose elements lie side by side: itself, or a copy in `memory`.
const float* plain(const Rows& rows, int64_t row, int64_t width, std::vector<float>& memory) {
    const float* values = rows.at(row);
    if (rows.step == 1 || width == 1) {
        return values;
    }
    memory.resize(width);
    for (int64_t i = 0; i < width; ++i) {
        memory[i] = values[i * rows.step];
    }
    return memory.data();
}

}  // namespace

void normalize(const Rows& x, const float* weight, float epsilon, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        std::vector<float> memory;
        for (int64_t row = begin; row < end; ++row) {
            isa.normalize(plain(x, row, width, memory), weight, epsilon, width, y + row * width);
        }
    });
}

void join_swiglu(const Rows& gate, const Rows& up, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(gate.count(), 4 * width, [&](int64_t begin, int64_t end) {
        std::vector<float> gates;
        std::vector<float> ups;
        for (int64_t row = begin; row < end; ++row) {
            isa.swiglu(plain(gate, row, width, gates), plain(up, row, width, ups), width, y + row * width);
        }
    });
}

void Turn::apply(const float* x, const float* cosines, const float* sines, int64_t width, float* y) const {
    const Instructions& isa = instructions();
    (are_neighbours ? isa.rotate_neighbours : isa.rotate)(x, cosines, sines, half, y);
    std::memcpy(y + 2 * half, x + 2 * half, (width - 2 * half) * sizeof(float));
}

void rotate(const Rows& x, const Rows& cosines, const Rows& sines, Turn turn, int64_t width, float* y) {
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        std::vector<float> values;
        std::vector<float> cosine;
        std::vector<float> sine;
        for (int64_t row = begin; row < end; ++row) {
            turn.apply(plain(x, row, width, values),
                       plain(cosines, row, turn.half, cosine),
                       plain(sines, row, turn.half, sine),
                       width,
                       y + row * width);
        }
    });
}

}  // namespace pomona
