#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "rows.h"

/// What the checks have in common. Every run draws the same numbers.
namespace harness {

constexpr double kTolerance = 1e-5;

inline int num_failures = 0;

inline void expect(bool holds, const std::string& what) {
    if (!holds) {
        ++num_failures;
        std::printf("FAILED: %s\n", what.c_str());
    }
}

/// Prints how many failed.
/// @return what `main` returns then.
inline int summary() {
    std::printf("%d failed\n", num_failures);
    return num_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

inline std::mt19937& random_bits() {
    static std::mt19937 generator(7);
    return generator;
}

inline int random_below(int bound) {
    return static_cast<int>(random_bits()() % static_cast<unsigned>(bound));
}

/// Random rows whose buffer is exactly as long as what it holds.
struct Input {
    Input(int64_t num_rows, int64_t columns, int64_t step) : values(num_rows * columns * step) {
        for (float& value : values) {
            value = std::normal_distribution<float>()(random_bits());
        }
        for (int64_t row = 0; row < num_rows; ++row) {
            offsets.push_back(row * columns * step);
        }
        this->step = step;
    }

    pomona::Rows rows() const { return {values.data(), offsets, step}; }

    std::vector<float> values;
    std::vector<int64_t> offsets;
    int64_t step;
};

}  // namespace harness
