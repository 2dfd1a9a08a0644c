#pragma once

#include <utility>
#include <vector>

#include "operands.h"

/// Layers that keep a state, as operations of MLX's graph, on the CPU; as those of `fused.h`.
namespace pomona {

/// Linear attention by the gated delta rule: queries, keys and values are convolved over the last tokens and go through
/// a silu; queries and keys get the length 1, queries divided by the root of their width; each head's memory forgets,
/// is corrected by the key and the value, and read by the query.
struct GatedDelta {
    mlx::core::array mixed;         ///< float32 [1, tokens, channels] of queries, keys and values
    mlx::core::array decays;        ///< float32 [1, tokens, value heads]
    mlx::core::array corrections;   ///< float32 [1, tokens, value heads]
    mlx::core::array convolution;   ///< float32 [taps, channels]
    mlx::core::array decay_rates;   ///< float32 [value heads]
    mlx::core::array decay_biases;  ///< float32 [value heads]
};

/// Before the first token of a row: float32 [1, taps - 1, channels] and [1, value heads, value dim, key dim].
using DeltaState = std::pair<mlx::core::array, mlx::core::array>;

/// @param states of each row; the first of all says how wide keys and values are.
/// @param pieces of each row: how many tokens come before each state that is wanted; all are over 0.
/// @return float32 [1, tokens, value heads * value dim], and then for each row and piece the two arrays of a state. All
///     operands are row-contiguous, which is found when they are evaluated.
/// @throws OperandRejected
std::vector<mlx::core::array> gated_delta(const GatedDelta& operands,
                                          const std::vector<DeltaState>& states,
                                          const std::vector<std::vector<int>>& pieces);

}  // namespace pomona
