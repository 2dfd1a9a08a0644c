#pragma once

#include "operands.h"

/// What a layer does between its products, as operations of MLX's graph, on the CPU. All throw OperandRejected: here,
/// or for the layout of an array when it is evaluated. Arrays may lie anyhow where nothing is said of it.
namespace pomona {

/// Root mean square normalization: x / sqrt(mean(x * x) + epsilon) * weight.
///
/// @param x float32 [..., runs * width].
/// @param weight float32 [width], row-contiguous; each run of so many elements is normalized by itself.
/// @return float32 of the shape of x.
mlx::core::array rms_norm(const mlx::core::array& x, const mlx::core::array& weight, float epsilon);

/// (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias.
///
/// @param x float32 [..., width].
/// @param weight float32 [width], row-contiguous.
/// @param bias the same.
/// @return float32 of the shape of x.
mlx::core::array layer_norm(const mlx::core::array& x,
                            const mlx::core::array& weight,
                            const mlx::core::array& bias,
                            float epsilon);

/// x * Phi(x).
///
/// @param x float32 [..., width].
/// @return float32 of the shape of x.
mlx::core::array gelu(const mlx::core::array& x);

/// gate / (1 + exp(-gate)) * up.
///
/// @param gate float32 [..., width].
/// @param up the same.
/// @return float32 of that shape.
mlx::core::array swiglu(const mlx::core::array& gate, const mlx::core::array& up);

/// x + addend.
///
/// @param x float32 [..., width].
/// @param addend float32 of the shape of x, or [width]: the same for each row.
/// @return float32 of the shape of x.
mlx::core::array add(const mlx::core::array& x, const mlx::core::array& addend);

/// Positions as angles: position * scale * turns[i] radians.
///
/// @param positions int32 [tokens], row-contiguous.
/// @param turns float32 [half], row-contiguous: what a token adds.
/// @return cosines and sines, float32 [tokens, half] both.
std::vector<mlx::core::array> angles(const mlx::core::array& positions, const mlx::core::array& turns, float scale);

/// Rotary position: turns the pairs (x[i], x[i + half]), or the neighbours (x[2 * i], x[2 * i + 1]) where they are
/// interleaved, by angles; what lies behind them stays.
///
/// @param x float32 [batches, heads, tokens, width], width at least 2 * half.
/// @param cosines float32 [tokens, half], or [batches, tokens, half].
/// @param sines the same.
/// @return float32 of the shape of x.
mlx::core::array rotate(const mlx::core::array& x,
                        const mlx::core::array& cosines,
                        const mlx::core::array& sines,
                        bool is_interleaved);

/// Attention with the softmax of scores.
///
/// @param queries float32 [batches, heads, queries, width].
/// @param keys float32 [batches, kv heads, keys, width], of which the heads are a multiple; as the others, any layout
///     in which the elements of a row lie side by side, as slices of a cache do.
/// @param values the same.
/// @param is_causal whether the last query stands at the last key, and sees no query what comes after it.
/// @return float32 [batches, queries, heads, width]: the heads of a query side by side.
mlx::core::array attention(const mlx::core::array& queries,
                           const mlx::core::array& keys,
                           const mlx::core::array& values,
                           float scale,
                           bool is_causal);

}  // namespace pomona
