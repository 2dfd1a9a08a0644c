// Checks linear attention by the delta rule, without Python and MLX: `make check-native`.

#include "delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "harness.h"
#include "instruction_set.h"
#include "pool.h"

namespace {

using pomona::DeltaOperands;
using pomona::DeltaRow;
using pomona::DeltaSizes;
using namespace harness;

constexpr int64_t kTokens = 41;

/// A state in buffers that are exactly as long as what they hold.
struct State {
    explicit State(const DeltaSizes& sizes) : seen(sizes.seen_size()), memory(sizes.memory_size()) {}

    std::vector<float> seen;
    std::vector<float> memory;
};

std::vector<float> numbers(int64_t count) {
    return Input(1, count, 1).values;
}

/// A layer with random weights, and the operands of some tokens.
struct Layer {
    explicit Layer(const DeltaSizes& sizes)
        : sizes(sizes),
          mixed(numbers(kTokens * sizes.channels())),
          decays(numbers(kTokens * sizes.value_heads)),
          corrections(numbers(kTokens * sizes.value_heads)),
          convolution(numbers(sizes.taps * sizes.channels())),
          rates(numbers(sizes.value_heads)),
          biases(numbers(sizes.value_heads)) {
        for (float& rate : rates) {
            rate = std::fabs(rate);
        }
    }

    DeltaOperands operands() const {
        return {mixed.data(), decays.data(), corrections.data(), convolution.data(), rates.data(), biases.data()};
    }

    DeltaSizes sizes;
    std::vector<float> mixed, decays, corrections, convolution, rates, biases;
};

/// Goes through all tokens as one row, cut into calls of `call` tokens and these into pieces of `piece`.
std::vector<float> run(const Layer& layer, int64_t call, int64_t piece, State* last) {
    const DeltaSizes& sizes = layer.sizes;
    std::vector<float> found(kTokens * sizes.value_width());
    State state(sizes);
    for (int64_t begin = 0; begin < kTokens; begin += call) {
        int64_t count = std::min(call, kTokens - begin);
        std::vector<State> reached;
        for (int64_t done = 0; done < count; done += piece) {
            reached.emplace_back(sizes);
        }
        DeltaRow row{0, state.seen.data(), state.memory.data(), {}};
        for (int64_t done = 0; done < count; done += piece) {
            State& next = reached[done / piece];
            row.pieces.push_back({std::min(piece, count - done), next.seen.data(), next.memory.data()});
        }
        Layer part = layer;
        part.mixed = {layer.mixed.begin() + begin * sizes.channels(),
                      layer.mixed.begin() + (begin + count) * sizes.channels()};
        DeltaOperands operands = part.operands();
        operands.decays += begin * sizes.value_heads;
        operands.corrections += begin * sizes.value_heads;
        pomona::run_delta(sizes, operands, {row}, found.data() + begin * sizes.value_width());
        state = reached.back();
    }
    *last = state;
    return found;
}

void check_cuts() {
    const DeltaSizes kinds[] = {{1, 2, 5, 7, 1}, {2, 4, 16, 33, 4}, {3, 3, 20, 64, 2}, {1, 4, 128, 36, 4}};
    for (const DeltaSizes& sizes : kinds) {
        Layer layer(sizes);
        State expected_state(sizes);
        std::vector<float> expected = run(layer, kTokens, kTokens, &expected_state);
        bool is_finite = true;
        for (float value : expected) {
            is_finite = is_finite && std::isfinite(value);
        }
        std::string name = "keys of " + std::to_string(sizes.key_dim);
        expect(is_finite, name + ": a number is none");
        for (int64_t call : {int64_t{1}, int64_t{7}, kTokens}) {
            for (int64_t piece : {int64_t{1}, int64_t{5}}) {
                State state(sizes);
                std::vector<float> found = run(layer, call, piece, &state);
                std::string cut = name + " in calls of " + std::to_string(call);
                expect(found == expected, cut + ": tokens find something else");
                expect(state.seen == expected_state.seen, cut + ": what is seen again is something else");
                expect(state.memory == expected_state.memory, cut + ": the memory is another");
            }
        }
    }
}

/// Rows of one step share nothing but it.
void check_rows() {
    const DeltaSizes sizes{2, 4, 16, 33, 4};
    Layer layer(sizes);
    State start(sizes);
    run(layer, kTokens, kTokens, &start);
    std::vector<int64_t> counts{1, 20, 1, 19};
    std::vector<State> reached(counts.size(), State(sizes));
    std::vector<DeltaRow> rows;
    int64_t first = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
        rows.push_back({first, start.seen.data(), start.memory.data(), {}});
        rows.back().pieces.push_back({counts[i], reached[i].seen.data(), reached[i].memory.data()});
        first += counts[i];
    }
    std::vector<float> together(kTokens * sizes.value_width());
    pomona::run_delta(sizes, layer.operands(), rows, together.data());
    for (size_t i = 0; i < counts.size(); ++i) {
        std::vector<float> alone(kTokens * sizes.value_width());
        State state(sizes);
        DeltaRow row = rows[i];
        row.pieces[0].seen = state.seen.data();
        row.pieces[0].memory = state.memory.data();
        int64_t begin = row.first;
        DeltaOperands operands = layer.operands();
        operands.mixed += begin * sizes.channels();
        operands.decays += begin * sizes.value_heads;
        operands.corrections += begin * sizes.value_heads;
        row.first = 0;
        pomona::run_delta(sizes, operands, {row}, alone.data());
        bool is_same = std::memcmp(alone.data(),
                                   together.data() + begin * sizes.value_width(),
                                   counts[i] * sizes.value_width() * sizeof(float)) == 0;
        expect(is_same && state.memory == reached[i].memory, "a row is another in company");
    }
}

}  // namespace

int main() {
    for (int threads : {1, 3}) {
        pomona::Pool::shared().resize(threads);
        for (const pomona::Instructions* instructions : pomona::available_instructions()) {
            pomona::choose_instructions(instructions->name);
            std::printf("%s, %d threads\n", instructions->name, threads);
            check_cuts();
            check_rows();
        }
    }
    return summary();
}
