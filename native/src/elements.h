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

/// Which pairs of a row are turned by their angles; what lies behind them stays.
struct Turn {
    int64_t half;         ///< how many
    bool are_neighbours;  ///< (x[2 * i], x[2 * i + 1]) instead of (x[i], x[i + half])

    /// Turns the pairs of one row of `width` floats by `half` angles.
    void apply(const float* x, const float* cosines, const float* sines, int64_t width, float* y) const;
};

/// Turns pairs of each row.
///
/// @param x rows of `width` floats, at least twice `turn.half`.
/// @param cosines for each row, `turn.half` floats.
/// @param sines the same.
/// @param y float32 [rows, width], written.
void rotate(const Rows& x, const Rows& cosines, const Rows& sines, Turn turn, int64_t width, float* y);

}  // namespace pomona
