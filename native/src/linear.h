#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "rows.h"

/// Products with matrices, quantized or not, on the threads of the shared pool.
namespace pomona {

/// Multiplies rows with transposed matrices.
///
/// @param x rows of as many floats as each matrix has columns.
/// @param matrices of equal columns, and of equal bits where they are quantized.
/// @param results one for each matrix: float32 [rows, matrix.rows], written.
void multiply(const Rows& x, const std::vector<QuantizedMatrix>& matrices, const std::vector<float*>& results);
void multiply(const Rows& x, const std::vector<DenseMatrix>& matrices, const std::vector<float*>& results);

/// Multiplies rows with a transposed matrix and adds to every output: with the bits of `multiply` and then a sum.
///
/// @param addend rows of `matrix.rows` floats, as many as x has.
/// @param y float32 [rows, matrix.rows], written.
void multiply_and_add(const Rows& x, const QuantizedMatrix& matrix, const Rows& addend, float* y);
void multiply_and_add(const Rows& x, const DenseMatrix& matrix, const Rows& addend, float* y);

/// A product of two narrow matrices, and the rows that it is for.
struct LowRank {
    DenseMatrix down;  ///< [rank, columns of x]
    DenseMatrix up;    ///< [rank, columns of y]
    float scale;
    std::vector<int64_t> rows;  ///< of x
};

/// Adds to each row what its low-rank product gives: y = addend + (scale * x * transposed down) * up. A row has the
/// bits that it has alone, whatever the others are for.
///
/// @param parts no row is in two of them; one that is in none is copied from `addend`.
/// @param addend rows of `width` floats, as many as x has.
/// @param y float32 [rows, width], written.
void add_low_rank(const Rows& x, const std::vector<LowRank>& parts, const Rows& addend, int64_t width, float* y);

/// Multiplies rows with two matrices of the same shape (and bits), and joins the products: gate / (1 + exp(-gate)) *
/// up.
///
/// @param y float32 [rows, gate.rows], written: with the bits that come of `multiply` and then `join_swiglu`.
void multiply_swiglu(const Rows& x, const QuantizedMatrix& gate, const QuantizedMatrix& up, float* y);
void multiply_swiglu(const Rows& x, const DenseMatrix& gate, const DenseMatrix& up, float* y);

/// Writes rows of the matrix as float32.
///
/// @param indices each at least 0 and less than `matrix.rows`.
/// @param values float32 [indices, matrix.columns], written.
void expand_rows(const QuantizedMatrix& matrix, const std::vector<int64_t>& indices, float* values);
void expand_rows(const DenseMatrix& matrix, const std::vector<int64_t>& indices, float* values);

}  // namespace pomona
