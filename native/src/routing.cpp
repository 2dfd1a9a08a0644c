#include "routing.h"

#include <vector>

#include "instruction_set.h"

namespace pomona {

namespace {

bool is_number(float value) {
    return value == value;
}

/// Whether a logit is chosen before another one that has a lower number.
bool precedes(float later, float earlier) {
    return later > earlier || (is_number(later) && !is_number(earlier));
}

/// Writes the numbers of the largest, in order: each is brought before those that it precedes.
void choose(const float* logits, int64_t count, int64_t num_chosen, int32_t* numbers) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (found == num_chosen && !precedes(logits[i], logits[numbers[found - 1]])) {
            continue;
        }
        int64_t place = found < num_chosen ? found++ : found - 1;
        for (; place > 0 && precedes(logits[i], logits[numbers[place - 1]]); --place) {
            numbers[place] = numbers[place - 1];
        }
        numbers[place] = static_cast<int32_t>(i);
    }
}

float sum_of(const float* values, int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        sum += values[i];
    }
    return sum;
}

}  // namespace

void choose_experts(const Rows& logits,
                    int64_t num_experts,
                    int64_t num_chosen,
                    Sharing sharing,
                    const float* scale,
                    int32_t* numbers,
                    float* shares) {
    const Instructions& isa = instructions();
    share_rows(logits.count(), 8 * num_experts, [&](int64_t begin, int64_t end) {
        std::vector<float> row(num_experts);
        std::vector<float> weights(num_experts);
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t expert = 0; expert < num_experts; ++expert) {
                row[expert] = logits.at(i)[expert * logits.step];
            }
            int32_t* chosen = numbers + i * num_chosen;
            float* own = shares + i * num_chosen;
            choose(row.data(), num_experts, num_chosen, chosen);
            float largest = row[chosen[0]];
            isa.weigh(row.data(), num_experts, largest, 1.0f, weights.data());
            for (int64_t rank = 0; rank < num_chosen; ++rank) {
                own[rank] = weights[chosen[rank]];
            }
            float sum = sharing == Sharing::of_all ? sum_of(weights.data(), num_experts) : sum_of(own, num_chosen);
            for (int64_t rank = 0; rank < num_chosen; ++rank) {
                own[rank] = own[rank] / sum * (scale ? scale[chosen[rank]] : 1.0f);
            }
        }
    });
}

void mix(const Rows& answers, const Rows& shares, int64_t num_chosen, int64_t width, float* y) {
    share_rows(shares.count(), num_chosen * width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float* sums = y + row * width;
            for (int64_t rank = 0; rank < num_chosen; ++rank) {
                const float* answer = answers.at(row * num_chosen + rank);
                float share = shares.at(row)[rank * shares.step];
                for (int64_t i = 0; i < width; ++i) {
                    float part = answer[i * answers.step] * share;
                    sums[i] = rank == 0 ? part : sums[i] + part;
                }
            }
        }
    });
}

void gate_by_sigmoid(const Rows& x, const Rows& gate, int64_t gate_width, int64_t width, float* y) {
    const Instructions& isa = instructions();
    share_rows(x.count(), 4 * width, [&](int64_t begin, int64_t end) {
        std::vector<float> values(width);
        std::vector<float> gates(width);
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t i = 0; i < width; ++i) {
                values[i] = x.at(row)[i * x.step];
                gates[i] = gate.at(row)[gate_width == 1 ? 0 : i * gate.step];
            }
            isa.sigmoid_gate(values.data(), gates.data(), width, y + row * width);
        }
    });
}

}  // namespace pomona
