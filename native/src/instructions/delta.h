#pragma once

#include "vector.h"

/// What linear attention by the delta rule does with rows, written once for any vector (see vector.h).

namespace pomona::vector {

/// Value rows that are taken together, so that a key and a query are loaded once for all of them.
constexpr int64_t kMemoryRows = 4;

template <class Isa>
float dot(const float* left, const float* right, int64_t count) {
    auto sum = Isa::zero();
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        sum = Isa::fma(load_some<Isa>(left + i, lanes), load_some<Isa>(right + i, lanes), sum);
    });
    return Isa::total(sum);
}

template <class Isa>
void convolve(const float* const* rows, const float* weights, int64_t taps, int64_t width, float* y) {
    auto one = constant<Isa>(1.0f);
    auto minus_one = constant<Isa>(-1.0f);
    for_vectors<Isa>(width, [&](int64_t i, int64_t lanes) {
        auto sum = Isa::zero();
        for (int64_t tap = 0; tap < taps; ++tap) {
            sum = Isa::fma(load_some<Isa>(rows[tap] + i, lanes), load_some<Isa>(weights + tap * width + i, lanes), sum);
        }
        auto below = Isa::add(one, exponential<Isa>(Isa::multiply(sum, minus_one)));
        store_some<Isa>(y + i, Isa::divide(sum, below), lanes);
    });
}

/// Some value rows of a memory at one token: what the key finds in each is corrected, and what the query finds is read.
template <class Isa, int rows>
POMONA_INLINE void remember_rows(const MemoryWalk& walk, int64_t token, int64_t first) {
    const float* key = walk.keys + token * walk.token_step;
    const float* query = walk.queries + token * walk.token_step;
    float* memory = walk.memory + first * walk.key_dim;
    typename Isa::Vec known[rows];
    typename Isa::Vec read[rows];
    POMONA_UNROLL
    for (int row = 0; row < rows; ++row) {
        known[row] = read[row] = Isa::zero();
    }
    for_vectors<Isa>(walk.key_dim, [&](int64_t i, int64_t lanes) {
        auto keys = load_some<Isa>(key + i, lanes);
        auto queries = load_some<Isa>(query + i, lanes);
        POMONA_UNROLL
        for (int row = 0; row < rows; ++row) {
            auto values = load_some<Isa>(memory + row * walk.key_dim + i, lanes);
            known[row] = Isa::fma(values, keys, known[row]);
            read[row] = Isa::fma(values, queries, read[row]);
        }
    });
    // With S = g R + m k^T: S q = g (R q) + m (k q), so the memory is read once and written once.
    float factor = walk.factors[token * walk.gate_step];
    float product = walk.products[token * walk.product_step];
    float missing[rows];
    for (int row = 0; row < rows; ++row) {
        float value = walk.values[token * walk.token_step + first + row];
        missing[row] = (value - factor * Isa::total(known[row])) * walk.weights[token * walk.gate_step];
        walk.y[token * walk.y_step + first + row] = factor * Isa::total(read[row]) + missing[row] * product;
    }
    auto factors = Isa::broadcast(&factor);
    for_vectors<Isa>(walk.key_dim, [&](int64_t i, int64_t lanes) {
        auto keys = load_some<Isa>(key + i, lanes);
        POMONA_UNROLL
        for (int row = 0; row < rows; ++row) {
            float* place = memory + row * walk.key_dim + i;
            auto decayed = Isa::multiply(load_some<Isa>(place, lanes), factors);
            store_some<Isa>(place, Isa::fma(keys, Isa::broadcast(&missing[row]), decayed), lanes);
        }
    });
}

template <class Isa>
void remember(const MemoryWalk& walk) {
    for (int64_t token = 0; token < walk.num_tokens; ++token) {
        int64_t row = 0;
        for (; row + kMemoryRows <= walk.num_rows; row += kMemoryRows) {
            remember_rows<Isa, kMemoryRows>(walk, token, row);
        }
        for (; row < walk.num_rows; ++row) {
            remember_rows<Isa, 1>(walk, token, row);
        }
    }
}

}  // namespace pomona::vector
