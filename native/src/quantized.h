#pragma once

#include <stdexcept>
#include <string>

#include "mlx/array.h"

namespace pomona {

/// Why a kernel cannot take what it was given.
class KernelError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// No kernel knows codes of this width, or groups of this size.
class QuantizationUnsupported : public KernelError {
  public:
    QuantizationUnsupported(int bits, int group_size)
        : KernelError("this quantization has no kernel"), bits(bits), group_size(group_size) {}

    int bits;
    int group_size;
};

/// An array does not fit: its dtype, its shape beside the others', its layout in memory, or an index in it.
class OperandRejected : public KernelError {
  public:
    OperandRejected(std::string operand, std::string problem)
        : KernelError(operand + " " + problem), operand(std::move(operand)), problem(std::move(problem)) {}

    std::string operand;
    std::string problem;
};

/// Matrices in MLX's affine format, as arrays: within a group, value = scale * code + bias.
struct QuantizedArrays {
    mlx::core::array codes;   ///< uint32 [..., rows, columns * bits / 32], row-contiguous
    mlx::core::array scales;  ///< float32, bfloat16 or float16 [..., rows, columns / group_size], row-contiguous
    mlx::core::array biases;  ///< the same
    int group_size;           ///< 32, 64 or 128
    int bits;                 ///< 2, 3, 4, 5, 6 or 8
};

/// Multiplies x with the transposed matrix, on the CPU.
///
/// @param x float32 [..., columns], any layout.
/// @return float32 [..., rows].
/// @throws QuantizationUnsupported, OperandRejected: here, or for the layout of an array when it is evaluated.
mlx::core::array quantized_linear(const mlx::core::array& x, const QuantizedArrays& matrix);

/// Multiplies each row of x with the matrix of its choice.
///
/// @param x float32 [..., columns], any layout: a row for each of `choices`, or one for each of its first dimensions.
/// @param matrices [matrices, rows, columns].
/// @param choices integers [...]: numbers of matrices.
/// @return float32 [choices..., rows].
/// @throws as `quantized_linear`; a number that no matrix has is found when the array is evaluated.
mlx::core::array gather_quantized_linear(const mlx::core::array& x,
                                         const QuantizedArrays& matrices,
                                         const mlx::core::array& choices);

/// Looks up rows of the matrix.
///
/// @param indices integers [...].
/// @return float32 [indices..., columns].
/// @throws as `quantized_linear`; an index that no row has is found when the array is evaluated.
mlx::core::array quantized_rows(const QuantizedArrays& matrix, const mlx::core::array& indices);

}  // namespace pomona
