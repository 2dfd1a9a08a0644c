#include "elements.h"

#include <cmath>
#include <cstring>

#include "instruction_set.h"

namespace pomona {

namespace {

// To find a cosine and a sine takes as long as to move so many floats.
constexpr int64_t kAngleWork = 32;

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

void center(const Rows& x, const float* weight, const float* bias, float epsilon, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        std::vector<float> memory;
        for (int64_t row = begin; row < end; ++row) {
            isa.center(plain(x, row, width, memory), weight, bias, epsilon, width, y + row * width);
        }
    });
}

void find_gelu(const Rows& x, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), 4 * width, [&](int64_t begin, int64_t end) {
        std::vector<float> memory;
        for (int64_t row = begin; row < end; ++row) {
            isa.gelu(plain(x, row, width, memory), width, y + row * width);
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

void join_geglu(const Rows& gate, const Rows& up, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(gate.count(), 4 * width, [&](int64_t begin, int64_t end) {
        std::vector<float> gates;
        std::vector<float> ups;
        for (int64_t row = begin; row < end; ++row) {
            isa.geglu(plain(gate, row, width, gates), plain(up, row, width, ups), width, y + row * width);
        }
    });
}

void bound_softly(const Rows& x, float bound, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), 4 * width, [&](int64_t begin, int64_t end) {
        std::vector<float> values;
        for (int64_t row = begin; row < end; ++row) {
            isa.soft_bound(plain(x, row, width, values), bound, width, y + row * width);
        }
    });
}

void multiply_rows(const Rows& x, const Rows& factor, int64_t width, float* y) {
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* values = x.at(row);
            const float* factors = factor.at(factor.count() == 1 ? 0 : row);
            for (int64_t i = 0; i < width; ++i) {
                y[row * width + i] = values[i * x.step] * factors[i * factor.step];
            }
        }
    });
}

void copy_rows(const Rows& x, int64_t width, float* y) {
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* values = x.at(row);
            for (int64_t i = 0; i < width; ++i) {
                y[row * width + i] = values[i * x.step];
            }
        }
    });
}

void Turn::apply(const float* x, const float* cosines, const float* sines, int64_t width, float* y) const {
    const Instructions& isa = instructions();
    (are_neighbours ? isa.rotate_neighbours : isa.rotate)(x, cosines, sines, half, y);
    std::memcpy(y + 2 * half, x + 2 * half, (width - 2 * half) * sizeof(float));
}

void find_angles(const int32_t* positions,
                 int64_t num_positions,
                 float scale,
                 const float* turns,
                 int64_t half,
                 float* cosines,
                 float* sines) {
    share_rows(num_positions, kAngleWork * half, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float position = static_cast<float>(positions[row]) * scale;
            for (int64_t i = 0; i < half; ++i) {
                float angle = position * turns[i];
                cosines[row * half + i] = std::cos(angle);
                sines[row * half + i] = std::sin(angle);
            }
        }
    });
}

void add(const Rows& x, const Rows& addend, int64_t width, float* y) {
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* values = x.at(row);
            const float* added = addend.at(addend.count() == 1 ? 0 : row);
            for (int64_t i = 0; i < width; ++i) {
                y[row * width + i] = values[i * x.step] + added[i * addend.step];
            }
        }
    });
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
