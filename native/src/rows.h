#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool.h"

namespace pomona {

/// Rows of float32 as they lie in memory.
struct Rows {
    const float* values;
    std::vector<int64_t> offsets;  ///< where each row begins, in floats
    int64_t step;                  ///< from one element of a row to the next, in floats

    int64_t count() const { return static_cast<int64_t>(offsets.size()); }
    const float* at(int64_t row) const { return values + offsets[row]; }
};

/// Memory that the calling thread keeps for its next kernel.
/// @return place for so many floats, at a multiple of 64 bytes, until the thread calls this again.
float* scratch(size_t num_floats);

/// Calls act(begin, end) for all rows from 0 to `num_rows`, on the threads of the shared pool.
/// @param row_work how many floats a row touches: little work is not worth sharing.
template <class Act>
void share_rows(int64_t num_rows, int64_t row_work, const Act& act) {
    constexpr int64_t kLeastWork = 16384;
    int64_t rows = row_work < kLeastWork ? kLeastWork / (row_work + 1) + 1 : 1;
    Pool::shared().run((num_rows + rows - 1) / rows, [&](int64_t piece) {
        int64_t end = (piece + 1) * rows;
        act(piece * rows, end < num_rows ? end : num_rows);
    });
}

}  // namespace pomona
