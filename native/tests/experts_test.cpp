// Checks what a mixture of experts is made of, without Python and MLX: `make check-native`.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "chosen.h"
#include "elements.h"
#include "harness.h"
#include "instruction_set.h"
#include "linear.h"
#include "routing.h"

namespace {

using pomona::Choices;
using pomona::DenseMatrix;
using pomona::FloatType;
using pomona::Gate;
using pomona::Sharing;
using namespace harness;

constexpr int kMatrices = 5;
constexpr int64_t kOutputs = 19;

/// Random choices, one of which is not there.
Choices choices_for(size_t num_rows) {
    Choices choices{{}, kMatrices};
    for (size_t row = 0; row < num_rows; ++row) {
        choices.numbers.push_back(random_below(kMatrices));
    }
    choices.numbers[3] = kMatrices;
    return choices;
}

/// What a row of y must be: that of its matrix in a product with all of them, or zeros.
std::vector<float> expected_row(const std::vector<float>& whole, size_t row, int64_t choice) {
    std::vector<float> expected(kOutputs, 0.0f);
    if (choice < kMatrices) {
        const float* begin = whole.data() + (row * kMatrices + choice) * kOutputs;
        expected.assign(begin, begin + kOutputs);
    }
    return expected;
}

void check_chosen_matrices() {
    for (int64_t columns : {7, 64, 769}) {
        Input gates(kMatrices * kOutputs, columns, 1);
        Input ups(kMatrices * kOutputs, columns, 1);
        DenseMatrix all_gates{
            reinterpret_cast<const uint8_t*>(gates.values.data()), FloatType::float32, kMatrices * kOutputs, columns};
        DenseMatrix all_ups = all_gates;
        all_ups.values = reinterpret_cast<const uint8_t*>(ups.values.data());
        DenseMatrix gate = all_gates;
        DenseMatrix up = all_ups;
        gate.rows = up.rows = kOutputs;
        Input x(300, columns, 2);
        Choices choices = choices_for(x.offsets.size());
        size_t size = x.offsets.size() * all_gates.rows;
        std::vector<float> whole_gates(size), whole_ups(size);
        pomona::multiply(
            x.rows(), std::vector<DenseMatrix>{all_gates, all_ups}, {whole_gates.data(), whole_ups.data()});
        for (Gate join : {Gate::swiglu, Gate::geglu}) {
            auto act = join == Gate::swiglu ? pomona::instructions().swiglu : pomona::instructions().geglu;
            std::vector<float> y(x.offsets.size() * kOutputs, 0.0f);
            std::vector<float> joined(x.offsets.size() * kOutputs, 0.0f);
            pomona::multiply_chosen(x.rows(), gate, choices, y.data());
            pomona::multiply_chosen_gated(x.rows(), gate, up, join, choices, joined.data());
            for (size_t row = 0; row < x.offsets.size(); ++row) {
                std::vector<float> expected = expected_row(whole_gates, row, choices.numbers[row]);
                bool equal = std::memcmp(expected.data(), y.data() + row * kOutputs, kOutputs * sizeof(float)) == 0;
                expect(equal, "row " + std::to_string(row) + " differs from its matrix's");
                std::vector<float> factor = expected_row(whole_ups, row, choices.numbers[row]);
                act(expected.data(), factor.data(), kOutputs, expected.data());
                equal = std::memcmp(expected.data(), joined.data() + row * kOutputs, kOutputs * sizeof(float)) == 0;
                expect(equal, "joined row " + std::to_string(row) + " differs from its matrices'");
            }
        }
    }
}

void check_choosing() {
    constexpr int64_t kExperts = 37;
    for (int64_t num_chosen : {int64_t{1}, int64_t{8}, kExperts}) {
        for (Sharing sharing : {Sharing::of_all, Sharing::of_chosen}) {
            Input logits(50, kExperts, 2);
            std::vector<int32_t> numbers(50 * num_chosen);
            std::vector<float> shares(50 * num_chosen);
            pomona::choose_experts(
                logits.rows(), kExperts, num_chosen, sharing, nullptr, numbers.data(), shares.data());
            for (int64_t row = 0; row < 50; ++row) {
                auto logit = [&](int64_t expert) { return logits.values[logits.offsets[row] + 2 * expert]; };
                std::vector<bool> is_chosen(kExperts);
                double all = 0, chosen = 0, sum = 0;
                for (int64_t rank = 0; rank < num_chosen; ++rank) {
                    int32_t number = numbers[row * num_chosen + rank];
                    expect(rank == 0 || logit(numbers[row * num_chosen + rank - 1]) >= logit(number),
                           "the chosen are not in order");
                    is_chosen[number] = true;
                    chosen += std::exp(logit(number));
                    sum += shares[row * num_chosen + rank];
                }
                for (int64_t expert = 0; expert < kExperts; ++expert) {
                    all += std::exp(logit(expert));
                    float least = logit(numbers[row * num_chosen + num_chosen - 1]);
                    expect(is_chosen[expert] || logit(expert) <= least, "a larger logit was left out");
                }
                double expected = sharing == Sharing::of_all ? chosen / all : 1.0;
                expect(std::fabs(sum - expected) < kTolerance, "shares sum to " + std::to_string(sum));
            }
        }
    }
}

void check_mixing() {
    Input answers(40 * 3, 33, 1);
    Input shares(40, 3, 2);
    Input gates(40, 1, 1);
    std::vector<float> mixed(40 * 33), gated(40 * 33);
    pomona::mix(answers.rows(), shares.rows(), 3, 33, mixed.data());
    pomona::gate_by_sigmoid({mixed.data(), gates.offsets, 1}, gates.rows(), 1, 1, gated.data());
    double worst = 0;
    for (int row = 0; row < 40; ++row) {
        for (int i = 0; i < 33; ++i) {
            double sum = 0;
            for (int rank = 0; rank < 3; ++rank) {
                sum += answers.values[(row * 3 + rank) * 33 + i] * shares.values[shares.offsets[row] + 2 * rank];
            }
            worst = std::fmax(worst, std::fabs(mixed[row * 33 + i] - sum));
        }
        worst = std::fmax(worst, std::fabs(gated[row] - mixed[row] / (1 + std::exp(-gates.values[row]))));
    }
    expect(worst < kTolerance, "a mixture is off by " + std::to_string(worst));
}

}  // namespace

int main() {
    for (const pomona::Instructions* instructions : pomona::available_instructions()) {
        std::printf("%s\n", instructions->name);
        pomona::choose_instructions(instructions->name);
        check_chosen_matrices();
        check_choosing();
        check_mixing();
    }
    return summary();
}
