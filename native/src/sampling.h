#pragma once

#include <vector>

#include "operands.h"

/// Draws as operations of MLX's graph, on the CPU. All throw OperandRejected: here, or for the layout of an array when
/// it is evaluated.
namespace pomona {

/// Draws a token from each row; see choice.h.
///
/// @param logits float32 [rows, width], the elements of a row side by side.
/// @param choices float32 [rows, 7], row-contiguous: a `Choice` for each row.
/// @param exempt_ids int32 [rows, ids], row-contiguous.
/// @return tokens, uint32 [rows]; normalizers, float32 [rows].
std::vector<mlx::core::array> draw(const mlx::core::array& logits,
                                   const mlx::core::array& choices,
                                   const mlx::core::array& exempt_ids);

/// Finds the largest logits of each row; see choice.h.
///
/// @param logits float32 [rows, width], the elements of a row side by side.
/// @param count from 1 to width.
/// @return ids, uint32 [rows, count]; logits, float32 [rows, count].
std::vector<mlx::core::array> top(const mlx::core::array& logits, int count);

/// Makes minus infinity of the logits that masks forbid; see choice.h.
///
/// @param logits float32 [rows, width], the elements of a row side by side.
/// @param masks uint32 [rows, words], row-contiguous.
/// @return float32 [rows, width].
mlx::core::array restrict(const mlx::core::array& logits, const mlx::core::array& masks);

}  // namespace pomona
