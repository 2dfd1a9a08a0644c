#pragma once

#include "operands.h"

/// Attention of rows in which heads lie side by side, as operations of MLX's graph, on the CPU. Throws OperandRejected:
/// here, or for the layout of an array when it is evaluated.
namespace pomona {

/// Attention with the softmax of scores, in which every query sees every key.
///
/// @param queries float32 [batches, queries, heads * width], in which the elements of a row lie side by side.
/// @param keys float32 [batches, keys, heads * width], the same.
/// @param values the same.
/// @return float32 of the shape of queries.
mlx::core::array full_attention(const mlx::core::array& queries,
                                const mlx::core::array& keys,
                                const mlx::core::array& values,
                                int num_heads,
                                float scale);

/// The same, in the order of sums of `attention`.
///
/// @param is_causal whether the last query stands at the last key, and sees no query what comes after it.
mlx::core::array head_attention(const mlx::core::array& queries,
                                const mlx::core::array& keys,
                                const mlx::core::array& values,
                                int num_heads,
                                float scale,
                                bool is_causal);

}  // namespace pomona
