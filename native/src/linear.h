#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace pomona {

/// Rows of float32 as they lie in memory.
struct Rows {
    const float* values;
    std::vector<int64_t> offsets;  ///< where each row begins, in floats
    int64_t step;                  ///< from one element of a row to the next, in floats
};

/// Multiplies rows with the transposed matrix, on the threads of the shared pool.
///
/// @param x rows of `matrix.columns` floats.
/// @param y float32 [rows, matrix.rows], written.
void multiply(const Rows& x, const QuantizedMatrix& matrix, float* y);

/// Multiplies every row with a matrix of its own choice out of several, of which all have the same shape and lie one
/// behind the other. Rows with the same choice are multiplied together, and each has the bits that it has alone.
///
/// @param first the first of the matrices.
/// @param choices for each row of x, the number of its matrix; one that is not there leaves its row of y unwritten.
/// @param num_matrices how many there are.
/// @param y float32 [rows, first.rows], written.
void multiply_chosen(
    const Rows& x, const QuantizedMatrix& first, const std::vector<int64_t>& choices, int64_t num_matrices, float* y);

/// Writes rows of the matrix as float32, on the threads of the shared pool.
///
/// @param indices each at least 0 and less than `matrix.rows`.
/// @param values float32 [indices, matrix.columns], written.
void expand_rows(const QuantizedMatrix& matrix, const std::vector<int64_t>& indices, float* values);

}  // namespace pomona
