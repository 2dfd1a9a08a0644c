#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "rows.h"

/// What a layer does to rows between its products, on the threads of the shared pool.
namespace pomona {

/// Root mean square normalization: y = x / sqrt(mean(x * x) + epsilon) * weight.
///
/// @param x rows of `width` floats.
/// @param weight `width` floats.
/// @param y float32 [rows, width], written.
void normalize(const Rows& x, const float* weight, float epsilon, int64_t width, float* y);

/// y = gate / (1 + exp(-gate)) * up.
///
/// @param gate rows of `width` floats.
/// @param up as many.
/// @param y float32 [rows, width], written.
void join_swiglu(const Rows& gate, const Rows& up, int64_t width, float* y);

/// Turns pairs (x[i], x[i + half]) of each row by angles; what lies behind them stays.
///
/// @param x rows of `width` floats, at least twice `half`.
/// @param cosines for each row, `half` floats.
/// @param sines the same.
/// @param y float32 [rows, width], written.
void rotate(const Rows& x, const Rows& cosines, const Rows& sines, int64_t half, int64_t width, float* y);

/// Attention with the softmax of the scores; see `Attention`. Every query must see a key.
void attend(const Attention& attention);

}  // namespace pomona
