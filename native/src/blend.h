#pragma once

#include "operands.h"

/// What some layers do element by element, as operations of MLX's graph, on the CPU; as those of `fused.h`.
namespace pomona {

/// gelu(gate) * up, with the gelu that is made of a tanh.
///
/// @param gate float32 [..., width].
/// @param up the same.
/// @return float32 of that shape.
mlx::core::array geglu(const mlx::core::array& gate, const mlx::core::array& up);

/// x * factor.
///
/// @param x float32 [..., width].
/// @param factor float32 of the shape of x, [width]: the same for each row, or [1]: the same for each element.
/// @return float32 of the shape of x.
mlx::core::array multiply(const mlx::core::array& x, const mlx::core::array& factor);

/// Some columns of x, next to one another.
///
/// @param x float32 [..., width].
/// @param begin the first column.
/// @param count how many.
/// @return float32 [..., count].
mlx::core::array columns(const mlx::core::array& x, int begin, int count);

/// bound * tanh(x / bound).
///
/// @param x float32 [..., width].
/// @param bound over 0.
/// @return float32 of the shape of x.
mlx::core::array soft_bound(const mlx::core::array& x, float bound);

}  // namespace pomona
