#pragma once

#include <optional>
#include <vector>

#include "chosen.h"
#include "operands.h"
#include "routing.h"

/// What a mixture of experts is made of, as operations of MLX's graph, on the CPU. All throw OperandRejected: here, or
/// for the layout of an array when it is evaluated.
namespace pomona {

/// Chooses for each token the experts of its largest logits, see `choose_experts` of routing.h.
///
/// @param logits float32 [..., experts], any layout.
/// @param num_chosen 1 to the number of experts.
/// @param sharing what share each has.
/// @param scale float32 [experts], row-contiguous.
/// @return their numbers, int32 [..., num_chosen], and their shares, float32 of that shape.
std::vector<mlx::core::array> choose_experts(const mlx::core::array& logits,
                                             int num_chosen,
                                             Sharing sharing,
                                             const std::optional<mlx::core::array>& scale);

/// Sums answers by their shares.
///
/// @param answers float32 [..., chosen, width], any layout.
/// @param shares float32 [..., chosen], any layout.
/// @return float32 [..., width].
mlx::core::array mix(const mlx::core::array& answers, const mlx::core::array& shares);

/// x / (1 + exp(-gate)).
///
/// @param x float32 [..., width], any layout.
/// @param gate float32 of the shape of x, or [..., 1].
/// @return float32 of the shape of x.
mlx::core::array sigmoid_gate(const mlx::core::array& x, const mlx::core::array& gate);

/// Multiplies each row with the one of several transposed matrices that it has chosen.
///
/// @param x float32, any layout: [choices..., columns], a row for each choice, or [choices without the last...,
///     columns], a row for each list of choices.
/// @param weights float32, bfloat16 or float16 [matrices, rows, columns], row-contiguous.
/// @param choices integers [...]. One that no matrix has is found when the array is evaluated.
/// @return float32 [choices..., rows].
mlx::core::array gather_linear(const mlx::core::array& x,
                               const mlx::core::array& weights,
                               const mlx::core::array& choices);

/// The same with two matrices for each choice, whose products are joined.
///
/// @param up of the shape of `gate`.
mlx::core::array gather_gated(const mlx::core::array& x,
                              const mlx::core::array& gate,
                              const mlx::core::array& up,
                              const mlx::core::array& choices,
                              Gate join);

}  // namespace pomona
