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

/// Layer normalization: y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias.
///
/// @param x rows of `width` floats.
/// @param weight `width` floats.
/// @param bias the same.
/// @param y float32 [rows, width], written.
void center(const Rows& x, const float* weight, const float* bias, float epsilon, int64_t width, float* y);

/// y = x * Phi(x), Phi being the distribution function of the normal distribution.
///
/// @param x rows of `width` floats.
/// @param y float32 [rows, width], written.
void find_gelu(const Rows& x, int64_t width, float* y);

/// y = gate / (1 + exp(-gate)) * up.
///
/// @param gate rows of `width` floats.
/// @param up as many.
/// @param y float32 [rows, width], written.
void join_swiglu(const Rows& gate, const Rows& up, int64_t width, float* y);

/// y = gelu(gate) * up, with the gelu that is made of a tanh.
///
/// @param gate rows of `width` floats.
/// @param up as many.
/// @param y float32 [rows, width], written.
void join_geglu(const Rows& gate, const Rows& up, int64_t width, float* y);

/// y = bound * tanh(x / bound).
///
/// @param x rows of `width` floats.
/// @param y float32 [rows, width], written.
void bound_softly(const Rows& x, float bound, int64_t width, float* y);

/// y = x * factor.
///
/// @param x rows of `width` floats.
/// @param factor as many, or one that multiplies each.
/// @param y float32 [rows, width], written.
void multiply_rows(const Rows& x, const Rows& factor, int64_t width, float* y);

/// Copies rows of `width` floats to y, float32 [rows, width].
void copy_rows(const Rows& x, int64_t width, float* y);

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

/// Positions as angles: of each position a row of `half` cosines and one of sines of position * scale * turns[i].
///
/// @param positions `num_positions` of them.
/// @param turns radians that a token adds, for each of `half` pairs.
/// @param cosines float32 [num_positions, half], written.
/// @param sines the same.
void find_angles(const int32_t* positions,
                 int64_t num_positions,
                 float scale,
                 const float* turns,
                 int64_t half,
                 float* cosines,
                 float* sines);

/// y = x + addend.
///
/// @param x rows of `width` floats.
/// @param addend as many, or one that is added to each.
/// @param y float32 [rows, width], written.
void add(const Rows& x, const Rows& addend, int64_t width, float* y);

}  // namespace pomona
