#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "instruction_set.h"
#include "kernels.h"
#include "pool.h"

/// How products are shared among threads: what the files of products have in common.
namespace pomona {

// Rows that are packed together: of a chunk of columns so many fit the second-level cache, beside what else is there.
constexpr int64_t kBlockRows = 128;

// What a thread takes at a time, in multiply-adds: less is lost in sharing, more is lost in waiting for the last.
constexpr int64_t kLeastPieceWork = 1 << 16;
constexpr int64_t kMostPieceWork = 1 << 20;
constexpr int64_t kPiecesPerThread = 4;

// Unpacking a weight costs as much as multiplying it with so many rows.
constexpr int64_t kRowsPerUnpacking = 3;

/// What the kernels have for either kind of matrix.
inline void pack_row(const Instructions& isa,
                     const QuantizedMatrix& matrix,
                     const float* row,
                     int64_t step,
                     const PackedRows& packed,
                     int64_t place) {
    isa.pack(row, step, matrix.bits, packed, place);
}

inline void pack_row(const Instructions& isa,
                     const DenseMatrix&,
                     const float* row,
                     int64_t step,
                     const PackedRows& packed,
                     int64_t place) {
    isa.pack_plain(row, step, packed, place);
}

inline void compute(const Instructions& isa, const Product<QuantizedMatrix>& product, int64_t begin, int64_t end) {
    isa.multiply(product, begin, end);
}

inline void compute(const Instructions& isa, const Product<DenseMatrix>& product, int64_t begin, int64_t end) {
    isa.multiply_dense(product, begin, end);
}

/// Products that are computed as one job.
template <class Matrix>
class Job {
  public:
    explicit Job(std::vector<Product<Matrix>> products) : products_(std::move(products)), isa_(instructions()) {
        int64_t total = 0;
        for (const Product<Matrix>& product : products_) {
            total += work_of_output(product) * product.matrix.rows;
        }
        int64_t work = total / (Pool::shared().num_threads() * kPiecesPerThread);
        work = std::clamp(work, kLeastPieceWork, kMostPieceWork);
        for (const Product<Matrix>& product : products_) {
            int64_t tiles = work / (work_of_output(product) * isa_.output_tile);
            int64_t outputs = std::max<int64_t>(1, tiles) * isa_.output_tile;
            outputs_.push_back(outputs);
            ends_.push_back((ends_.empty() ? 0 : ends_.back()) + (product.matrix.rows + outputs - 1) / outputs);
        }
    }

    /// Calls act(number of the product, begin, end) for pieces of all outputs.
    template <class Act>
    void share(const Act& act) const {
        Pool::shared().run(ends_.empty() ? 0 : ends_.back(), [&](int64_t piece) {
            auto number = std::upper_bound(ends_.begin(), ends_.end(), piece) - ends_.begin();
            int64_t begin = (piece - (number == 0 ? 0 : ends_[number - 1])) * outputs_[number];
            act(number, begin, std::min(products_[number].matrix.rows, begin + outputs_[number]));
        });
    }

    /// Computes them all.
    void run() const {
        share([this](int64_t number, int64_t begin, int64_t end) { compute(isa_, products_[number], begin, end); });
    }

    const Product<Matrix>& product(int64_t number) const { return products_[number]; }
    const Instructions& isa() const { return isa_; }

  private:
    static int64_t work_of_output(const Product<Matrix>& product) {
        return (product.x.rows + kRowsPerUnpacking) * product.matrix.columns;
    }

    std::vector<Product<Matrix>> products_;
    const Instructions& isa_;
    std::vector<int64_t> outputs_;  // that a piece has, for each product
    std::vector<int64_t> ends_;     // the number of pieces up to the end of each product
};

}  // namespace pomona
