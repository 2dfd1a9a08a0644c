#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "rows.h"

/// Products of rows with matrices of their own choice, as a layer of experts has them. Rows with the same choice are
/// multiplied together, and each has the bits that it has alone.
namespace pomona {

/// Which of several matrices each row is multiplied with. These have the same shape and lie one behind the other.
struct Choices {
    std::vector<int64_t> numbers;  ///< for each row; one that is not there leaves its row of y unwritten
    int64_t num_matrices;
};

/// What joins the two products of a gated layer.
enum class Gate { swiglu, geglu };

/// @param x rows of as many floats as the matrices have columns.
/// @param first the first of the matrices.
/// @param y float32 [rows, first.rows], written.
void multiply_chosen(const Rows& x, const QuantizedMatrix& first, const Choices& choices, float* y);
void multiply_chosen(const Rows& x, const DenseMatrix& first, const Choices& choices, float* y);

/// Multiplies with two matrices of the same number and shape (and bits), and joins the products.
///
/// @param y float32 [rows, gate.rows], written: with the bits that come of two of `multiply_chosen` and then
///     `join_swiglu` or `join_geglu`.
void multiply_chosen_gated(
    const Rows& x, const QuantizedMatrix& gate, const QuantizedMatrix& up, Gate join, const Choices& choices, float* y);
void multiply_chosen_gated(
    const Rows& x, const DenseMatrix& gate, const DenseMatrix& up, Gate join, const Choices& choices, float* y);

}  // namespace pomona
