#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "operands.h"

/// What adapters add to the products of a layer, as an operation of MLX's graph, on the CPU.
namespace pomona {

/// Two matrices [rank, columns] and [rank, outputs] of float32, bfloat16 or float16, row-contiguous.
using Narrow = std::pair<mlx::core::array, mlx::core::array>;

/// Numbers of rows; none: every row.
using ChosenRows = std::optional<std::vector<int64_t>>;

/// Adds to rows of a layer's outputs what low-rank products of its inputs give: see `add_low_rank`.
///
/// @param x float32 [..., columns], any layout.
/// @param addend float32 [..., outputs], any layout, of as many rows as x.
/// @param matrices of each product.
/// @param scales of each product.
/// @param rows of each product, the numbers of rows of x that it is for; no row may have two.
/// @return float32 of the shape of `addend`.
/// @throws OperandRejected here, or for the layout of an array when it is evaluated.
mlx::core::array add_low_rank_products(const mlx::core::array& x,
                                       const mlx::core::array& addend,
                                       const std::vector<Narrow>& matrices,
                                       const std::vector<float>& scales,
                                       const std::vector<ChosenRows>& rows);

}  // namespace pomona
