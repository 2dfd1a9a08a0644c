// Checks the draws without Python and MLX, so that a sanitizer sees nothing but them: `make check-native`.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "choice.h"
#include "instruction_set.h"
#include "pool.h"

namespace {

using pomona::Choice;
using pomona::Rows;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMargin = 1e-5;  // closer to a boundary than this, rounding decides
constexpr Choice kPlain{1, 1, -kInfinity, 0.5f, 0, 0, 0};

int num_failures = 0;

void expect(bool holds, const std::string& what) {
    if (!holds) {
        ++num_failures;
        std::printf("FAILED: %s\n", what.c_str());
    }
}

std::mt19937& random_bits() {
    static std::mt19937 generator(11);
    return generator;
}

int random_below(int bound) {
    return static_cast<int>(random_bits()() % static_cast<unsigned>(bound));
}

float random_uniform() {
    return static_cast<float>(random_below(1 << 24)) / (1 << 24);
}

/// Rows in a buffer exactly as long as what it holds.
struct Logits {
    Logits(int64_t rows, int64_t width, float spread) : values(rows * width), width(width) {
        std::normal_distribution<float> normal(0, spread);
        for (float& value : values) {
            value = normal(random_bits());
        }
    }

    Rows rows(int64_t first, int64_t count) const {
        std::vector<int64_t> offsets;
        for (int64_t row = first; row < first + count; ++row) {
            offsets.push_back(row * width);
        }
        return {values.data(), offsets, 1};
    }
    int64_t count() const { return static_cast<int64_t>(values.size()) / width; }

    std::vector<float> values;
    int64_t width;
};

struct Tokens {
    std::vector<uint32_t> tokens;
    std::vector<float> normalizers;

    bool operator==(const Tokens&) const = default;
};

Tokens choose(const Logits& logits, int64_t first, const std::vector<Choice>& choices) {
    auto count = static_cast<int64_t>(choices.size());
    std::vector<int32_t> exempt_ids(count, 1);
    Tokens found{std::vector<uint32_t>(count), std::vector<float>(count)};
    pomona::choose(logits.rows(first, count),
                   logits.width,
                   choices.data(),
                   exempt_ids.data(),
                   1,
                   found.tokens.data(),
                   found.normalizers.data());
    return found;
}

Choice random_choice(int64_t width) {
    Choice choice = kPlain;
    choice.sharpness = random_below(4) == 0 ? 0.0f : 0.5f + random_uniform();
    choice.top_p = random_below(2) == 0 ? 1.0f : 0.05f + 0.9f * random_uniform();
    choice.log_min_p = random_below(3) == 0 ? std::log(0.01f + 0.9f * random_uniform()) : -kInfinity;
    choice.xtc_threshold = random_below(3) == 0 ? 0.4f * random_uniform() : 0.5f;
    choice.top_k = random_below(2) == 0 ? 0.0f : static_cast<float>(1 + random_below(static_cast<int>(width) + 1));
    choice.uniform = random_uniform();
    choice.needs_normalizer = static_cast<float>(random_below(2));
    return choice;
}

/// The places of a row's tokens, the most probable first.
std::vector<int64_t> order_of(const float* logits, int64_t width) {
    std::vector<int64_t> order(width);
    for (int64_t i = 0; i < width; ++i) {
        order[i] = i;
    }
    std::stable_sort(
        order.begin(), order.end(), [&](int64_t left, int64_t right) { return logits[left] > logits[right]; });
    return order;
}

/// Where a row's token begins and ends among all that may come, by float64; both are -1 where rounding decides more.
struct Span {
    double begin;
    double end;
};

Span span_of(const float* logits, int64_t width, const Choice& choice, uint32_t token) {
    std::vector<int64_t> order = order_of(logits, width);
    double best = logits[order[0]];
    double mass = 0;
    for (int64_t i = 0; i < width; ++i) {
        mass += std::exp(logits[i] - best);
    }
    std::vector<bool> kept(width, false);
    double before = 0;
    double least_likely = kInfinity;
    bool is_close = false;
    for (int64_t id : order) {
        double depth = logits[id] - best;
        double probability = std::exp(depth) / mass;
        bool in_top_p = choice.top_p >= 1 || before < choice.top_p;
        kept[id] = in_top_p && depth >= choice.log_min_p;
        is_close |= choice.top_p < 1 && std::abs(before - choice.top_p) < kMargin;
        is_close |= std::abs(depth - choice.log_min_p) < kMargin;
        is_close |= std::abs(probability - choice.xtc_threshold) < kMargin;
        if (kept[id] && choice.xtc_threshold < 0.5f && probability > choice.xtc_threshold) {
            least_likely = logits[id];
        }
        before += probability;
    }
    int64_t num_kept = 0;
    std::vector<double> weights(width, 0.0);
    double total = 0;
    for (int64_t id : order) {
        if (!kept[id] || (logits[id] > least_likely && id != 1)) {
            continue;
        }
        if (++num_kept <= choice.top_k || choice.top_k == 0) {
            weights[id] = std::exp((logits[id] - best) * choice.sharpness);
            total += weights[id];
        }
    }
    double begin = 0;
    for (uint32_t id = 0; id < token; ++id) {
        begin += weights[id];
    }
    return is_close ? Span{-1, -1} : Span{begin / total, (begin + weights[token]) / total};
}

void check_against_float64() {
    int num_close = 0;
    for (int64_t width : {1, 5, 16, 63, 64, 65, 129, 1000}) {
        for (float spread : {0.3f, 3.0f}) {
            Logits logits(40, width, spread);
            std::vector<Choice> choices;
            for (int64_t row = 0; row < logits.count(); ++row) {
                choices.push_back(random_choice(width));
            }
            std::vector<uint32_t> tokens = choose(logits, 0, choices).tokens;
            for (int64_t row = 0; row < logits.count(); ++row) {
                const float* values = logits.values.data() + row * width;
                if (choices[row].sharpness == 0) {
                    expect(tokens[row] == order_of(values, width)[0], "greedy takes the best");
                    continue;
                }
                Span span = span_of(values, width, choices[row], tokens[row]);
                num_close += span.end < 0;
                bool holds = span.begin - kMargin <= choices[row].uniform && choices[row].uniform < span.end + kMargin;
                expect(span.end < 0 || holds, "the draw falls on the token, width " + std::to_string(width));
            }
        }
    }
    expect(num_close < 60, "few draws are a close thing");
}

void check_company_and_threads() {
    Logits logits(12, 20000, 3.0f);
    std::vector<Choice> choices;
    for (int64_t row = 0; row < logits.count(); ++row) {
        choices.push_back(random_choice(2000));
    }
    pomona::Pool::shared().resize(1);
    Tokens alone;
    for (int64_t row = 0; row < logits.count(); ++row) {
        Tokens one = choose(logits, row, {choices[row]});
        alone.tokens.push_back(one.tokens[0]);
        alone.normalizers.push_back(one.normalizers[0]);
    }
    for (int threads : {1, 2, 4}) {
        pomona::Pool::shared().resize(threads);
        expect(choose(logits, 0, choices) == alone, "a row is the same in any company");
    }
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
        callers.emplace_back([&] { expect(choose(logits, 0, choices) == alone, "a draw is the same beside others"); });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
}

void check_what_is_no_number() {
    for (int64_t place : {0, 15, 16, 64, 70}) {
        for (float bad : {std::nanf(""), kInfinity}) {
            Logits logits(3, 71, 1.0f);
            Tokens whole = choose(logits, 0, {kPlain, kPlain, kPlain});
            logits.values[71 + place] = bad;
            Tokens found = choose(logits, 0, {kPlain, kPlain, kPlain});
            expect(!std::isfinite(found.normalizers[1]) && found.tokens[1] == 0, "a bad row says so");
            expect(found.tokens[0] == whole.tokens[0] && found.tokens[2] == whole.tokens[2], "and hurts no other");
        }
    }
    Logits none(1, 40, 1.0f);
    std::fill(none.values.begin(), none.values.end(), -kInfinity);
    expect(choose(none, 0, {kPlain}).normalizers[0] == -kInfinity, "a row without any allowed says so");
}

void check_top() {
    for (int64_t width : {1, 20, 64, 300, 5000}) {
        Logits logits(5, width, 1.0f);
        for (float& value : logits.values) {
            value = random_below(3) == 0 ? std::round(value) : value;
        }
        int64_t count = std::min<int64_t>(width, 20);
        std::vector<uint32_t> ids(5 * count);
        std::vector<float> values(5 * count);
        pomona::find_top(logits.rows(0, 5), width, count, ids.data(), values.data());
        for (int64_t row = 0; row < 5; ++row) {
            const float* from = logits.values.data() + row * width;
            std::vector<int64_t> order = order_of(from, width);
            for (int64_t i = 0; i < count; ++i) {
                expect(ids[row * count + i] == order[i], "the largest come in order");
                expect(values[row * count + i] == from[order[i]], "with their values");
            }
        }
        logits.values[0] = std::nanf("");
        pomona::find_top(logits.rows(0, 5), width, count, ids.data(), values.data());
        expect(std::all_of(ids.begin(), ids.end(), [&](uint32_t id) { return id < width; }), "ids stay in the row");
    }
}

void check_masks() {
    for (int64_t width : {1, 31, 32, 33, 1000}) {
        for (int64_t num_words : {int64_t{0}, (width + 31) / 32 - 1, (width + 31) / 32}) {
            Logits logits(3, width, 1.0f);
            std::vector<uint32_t> masks(3 * num_words);
            for (uint32_t& word : masks) {
                word = random_below(3) == 0 ? 0 : random_bits()();
            }
            std::vector<float> found(3 * width);
            pomona::restrict_rows(logits.rows(0, 3), width, masks.data(), num_words, found.data());
            for (int64_t i = 0; i < 3 * width; ++i) {
                int64_t token = i % width;
                bool is_known = token / 32 < num_words;
                bool is_allowed = is_known && (masks[i / width * num_words + token / 32] >> token % 32 & 1) != 0;
                expect(found[i] == (is_allowed ? logits.values[i] : -kInfinity), "a mask forbids what it should");
            }
        }
    }
}

}  // namespace

int main() {
    for (const pomona::Instructions* instructions : pomona::available_instructions()) {
        std::printf("%s\n", instructions->name);
        pomona::choose_instructions(instructions->name);
        check_against_float64();
        check_company_and_threads();
        check_what_is_no_number();
        check_top();
        check_masks();
    }
    std::printf("%d failed\n", num_failures);
    return num_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
