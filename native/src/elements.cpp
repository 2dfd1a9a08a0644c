#include "elements.h"

#include <algorithm>
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

void rotate(const Rows& x, const Rows& cosines, const Rows& sines, int64_t half, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), width, [&](int64_t begin, int64_t end) {
        std::vector<float> values;
        std::vector<float> cosine;
        std::vector<float> sine;
        for (int64_t row = begin; row < end; ++row) {
            const float* from = plain(x, row, width, values);
            float* to = y + row * width;
            isa.rotate(from, plain(cosines, row, half, cosine), plain(sines, row, half, sine), half, to);
            std::memcpy(to + 2 * half, from + 2 * half, (width - 2 * half) * sizeof(float));
        }
    });
}

void attend(const Attention& attention) {
    constexpr int64_t kMostScores = 1 << 18;  // of a piece, so that they fit the second-level cache
    const Instructions& isa = instructions();
    int64_t num_scores = (attention.num_keys + 15) / 16 * 16;
    int64_t block = std::clamp<int64_t>(kMostScores / std::max<int64_t>(1, num_scores), 1, kQueryBlock);
    int64_t blocks = (attention.num_queries + block - 1) / block;
    // The last queries see the most keys: they come first.
    Pool::shared().run(attention.batches * attention.heads * blocks, [&](int64_t piece) {
        int64_t begin = (blocks - 1 - piece % blocks) * block;
        int64_t end = std::min(attention.num_queries, begin + block);
        int64_t head = piece / blocks % attention.heads;
        isa.attend(attention, piece / blocks / attention.heads, head, begin, end, scratch((end - begin) * num_scores));
    });
}

}  // namespace pomona
