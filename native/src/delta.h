#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

/// Linear attention by the gated delta rule, on the threads of the shared pool.
namespace pomona {

/// The sizes of a layer.
struct DeltaSizes {
    int64_t key_heads;
    int64_t value_heads;  ///< a multiple of `key_heads`
    int64_t key_dim;
    int64_t value_dim;
    int64_t taps;  ///< tokens that the convolution sees

    /// Channels of queries, of keys.
    int64_t key_width() const { return key_heads * key_dim; }
    /// Channels of values.
    int64_t value_width() const { return value_heads * value_dim; }
    /// Channels of queries, keys and values together.
    int64_t channels() const { return 2 * key_width() + value_width(); }
    /// Numbers of what the convolution sees again.
    int64_t seen_size() const { return (taps - 1) * channels(); }
    /// Numbers of a memory.
    int64_t memory_size() const { return value_heads * value_dim * key_dim; }
};

/// What a layer computes with and of; all of it row-contiguous.
struct DeltaOperands {
    const float* mixed;        ///< [tokens, channels]
    const float* decays;       ///< [tokens, value heads]
    const float* corrections;  ///< [tokens, value heads]
    const float* convolution;  ///< [taps, channels]
    const float* rates;        ///< [value heads]: a head forgets by exp(-rate * softplus(decay + bias))
    const float* biases;       ///< [value heads]
};

/// Tokens of a row, and the state behind the last of them.
struct DeltaPiece {
    int64_t num_tokens;
    float* seen;    ///< [taps - 1, channels], written
    float* memory;  ///< [value heads, value dim, key dim], written
};

/// One sequence's tokens.
struct DeltaRow {
    int64_t first;        ///< number of the first token among all
    const float* seen;    ///< the state before it
    const float* memory;  ///< the same
    std::vector<DeltaPiece> pieces;

    int64_t num_tokens() const {
        int64_t sum = 0;
        for (const DeltaPiece& piece : pieces) {
            sum += piece.num_tokens;
        }
        return sum;
    }
};

/// Goes through the tokens of all rows.
///
/// What a token gives, and the states, have the same bits however the tokens before are cut into calls and pieces, and
/// whatever rows come with them.
///
/// @param y float32 [tokens, value heads, value dim], written.
void run_delta(const DeltaSizes& sizes, const DeltaOperands& operands, const std::vector<DeltaRow>& rows, float* y);

}  // namespace pomona
