#pragma once

#include <vector>

#include "kernels.h"
#include "operands.h"

/// Products with matrices that are not quantized, as operations of MLX's graph, on the CPU. A weight is float32,
/// bfloat16 or float16 [rows, columns], row-contiguous, and its values become float32 as they are read. All throw
/// OperandRejected: here, or for the layout of an array when it is evaluated.
namespace pomona {

/// Throws OperandRejected where an array is no such weight.
void check_dense(const mlx::core::array& weight, const char* operand);

/// A weight as it lies in memory, evaluated.
DenseMatrix dense_matrix(const mlx::core::array& weight, const char* operand);

/// Multiplies x with transposed matrices.
///
/// @param x float32 [..., columns], any layout.
/// @param weights one or more, of equal columns.
/// @return for each, float32 [..., rows].
std::vector<mlx::core::array> linears(const mlx::core::array& x, const std::vector<mlx::core::array>& weights);

/// Multiplies x with a transposed matrix and adds: the bits of `linears` and then a sum.
///
/// @param x float32 [..., columns], any layout.
/// @param addend float32 [..., rows], any layout.
/// @return float32 [..., rows].
mlx::core::array linear_and_add(const mlx::core::array& x,
                                const mlx::core::array& weight,
                                const mlx::core::array& addend);

/// Multiplies x with two transposed matrices and joins the products: gate / (1 + exp(-gate)) * up.
///
/// @param x float32 [..., columns], any layout.
/// @param gate the first matrix.
/// @param up the second, of the same shape.
/// @return float32 [..., rows].
mlx::core::array linear_swiglu(const mlx::core::array& x, const mlx::core::array& gate, const mlx::core::array& up);

/// Looks up rows of the matrix.
///
/// @param indices integers [...]. One that no row has is found when the array is evaluated.
/// @return float32 [indices..., columns].
mlx::core::array rows(const mlx::core::array& weight, const mlx::core::array& indices);

}  // namespace pomona
