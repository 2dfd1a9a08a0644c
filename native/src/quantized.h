#pragma once

#include <vector>

#include "chosen.h"
#include "operands.h"

/// Products with quantized matrices as operations of MLX's graph, on the CPU. All throw QuantizationUnsupported and
/// OperandRejected: here, or for the layout of an array when it is evaluated.
namespace pomona {

/// Matrices in MLX's affine format, as arrays: within a group, value = scale * code + bias.
struct QuantizedArrays {
    mlx::core::array codes;   ///< uint32 [..., rows, columns * bits / 32], row-contiguous
    mlx::core::array scales;  ///< float32, bfloat16 or float16 [..., rows, columns / group_size], row-contiguous
    mlx::core::array biases;  ///< the same
};

struct Quantization {
    int group_size;  ///< 32, 64 or 128
    int bits;        ///< 2, 3, 4, 5, 6 or 8
};

/// Multiplies x with transposed matrices.
///
/// @param x float32 [..., columns], any layout.
/// @param matrices one or more, of equal columns.
/// @return for each, float32 [..., rows].
std::vector<mlx::core::array> quantized_linears(const mlx::core::array& x,
                                                const std::vector<QuantizedArrays>& matrices,
                                                Quantization quantization);

/// Multiplies x with a transposed matrix and adds: the bits of `quantized_linears` and then a sum.
///
/// @param x float32 [..., columns], any layout.
/// @param addend float32 [..., rows], any layout.
/// @return float32 [..., rows].
mlx::core::array quantized_linear_and_add(const mlx::core::array& x,
                                          const QuantizedArrays& matrix,
                                          const mlx::core::array& addend,
                                          Quantization quantization);

/// Multiplies x with two transposed matrices and joins the products: gate / (1 + exp(-gate)) * up.
///
/// @param x float32 [..., columns], any layout.
/// @param gate the first matrix.
/// @param up the second, of the same shape.
/// @return float32 [..., rows].
mlx::core::array quantized_swiglu(const mlx::core::array& x,
                                  const QuantizedArrays& gate,
                                  const QuantizedArrays& up,
                                  Quantization quantization);

/// Multiplies each row of x with the matrix of its choice.
///
/// @param x float32 [..., columns], any layout: a row for each of `choices`, or one for each list of them.
/// @param matrices [matrices, rows, columns].
/// @param choices integers [...]: numbers of matrices. One that no matrix has is found when the array is evaluated.
/// @return float32 [choices..., rows].
mlx::core::array gather_quantized_linear(const mlx::core::array& x,
                                         const QuantizedArrays& matrices,
                                         const mlx::core::array& choices,
                                         Quantization quantization);

/// Multiplies each row of x with two matrices of the number of its choice, and joins the products.
///
/// @param gate [matrices, rows, columns], as for `gather_quantized_linear`.
/// @param up of the same shape.
/// @return float32 [choices..., rows].
mlx::core::array gather_quantized_gated(const mlx::core::array& x,
                                        const QuantizedArrays& gate,
                                        const QuantizedArrays& up,
                                        const mlx::core::array& choices,
                                        Quantization quantization,
                                        Gate join);

/// Looks up rows of the matrix.
///
/// @param indices integers [...]. One that no row has is found when the array is evaluated.
/// @return float32 [indices..., columns].
mlx::core::array quantized_rows(const QuantizedArrays& matrix,
                                const mlx::core::array& indices,
                                Quantization quantization);

}  // namespace pomona
