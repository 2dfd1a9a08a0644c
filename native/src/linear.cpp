#include "linear.h"

#include <algorithm>
#include <utility>

#include "instruction_set.h"

namespace pomona {

namespace {

// Rows that are packed together: of a chunk of columns so many fit the second-level cache, beside what else is there.
constexpr int64_t kBlockRows = 128;

// What a thread takes at a time, in multiply-adds: less is lost in sharing, more is lost in waiting for the last.
constexpr int64_t kLeastPieceWork = 1 << 16;
constexpr int64_t kMostPieceWork = 1 << 20;
constexpr int64_t kPiecesPerThread = 4;

// Unpacking a weight costs as much as multiplying it with so many rows.
constexpr int64_t kRowsPerUnpacking = 3;

// What the kernels have for either kind of matrix.

void pack_row(const Instructions& isa,
              const QuantizedMatrix& matrix,
              const float* row,
              int64_t step,
              const PackedRows& packed,
              int64_t place) {
    isa.pack(row, step, matrix.bits, packed, place);
}

void pack_row(const Instructions& isa,
              const DenseMatrix&,
              const float* row,
              int64_t step,
              const PackedRows& packed,
              int64_t place) {
    isa.pack_plain(row, step, packed, place);
}

void compute(const Instructions& isa, const Product<QuantizedMatrix>& product, int64_t begin, int64_t end) {
    isa.multiply(product, begin, end);
}

void compute(const Instructions& isa, const Product<DenseMatrix>& product, int64_t begin, int64_t end) {
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

/// Packs rows `begin` to `end` of x for products with that matrix, or with one of as many bits.
template <class Matrix>
PackedRows pack(const Rows& x, int64_t begin, int64_t end, const Matrix& matrix) {
    const Instructions& isa = instructions();
    int64_t whole_columns = (matrix.columns + kUnitColumns - 1) / kUnitColumns * kUnitColumns;
    PackedRows packed{scratch((end - begin) * whole_columns), end - begin, matrix.columns};
    share_rows(packed.rows, packed.columns, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            pack_row(isa, matrix, x.at(begin + row), x.step, packed, row);
        }
    });
    return packed;
}

/// One of several matrices that lie one behind the other.
QuantizedMatrix matrix_at(const QuantizedMatrix& first, int64_t number) {
    int64_t scale_bytes = first.scale_type == FloatType::float32 ? 4 : 2;
    int64_t skipped_bytes = number * first.rows * first.groups() * scale_bytes;
    QuantizedMatrix matrix = first;
    matrix.codes += number * first.rows * first.row_bytes();
    matrix.scales = static_cast<const char*>(first.scales) + skipped_bytes;
    matrix.biases = static_cast<const char*>(first.biases) + skipped_bytes;
    return matrix;
}

/// Row numbers in the order of their choices, those of one choice in their own order.
std::vector<int64_t> rows_by_choice(const std::vector<int64_t>& choices, int64_t num_matrices) {
    std::vector<int64_t> order;
    for (size_t row = 0; row < choices.size(); ++row) {
        if (choices[row] >= 0 && choices[row] < num_matrices) {
            order.push_back(static_cast<int64_t>(row));
        }
    }
    std::stable_sort(
        order.begin(), order.end(), [&](int64_t left, int64_t right) { return choices[left] < choices[right]; });
    return order;
}

/// The place behind those from `begin` on that have the same choice, at most `end`.
int64_t end_of_choice(const std::vector<int64_t>& order,
                      const std::vector<int64_t>& choices,
                      int64_t begin,
                      int64_t end) {
    int64_t place = begin;
    while (place < end && choices[order[place]] == choices[order[begin]]) {
        ++place;
    }
    return place;
}

/// Rows `begin` to `end` of `width` floats, one behind the other: where they lie so, or copied to `memory`.
const float* side_by_side(const Rows& rows, int64_t begin, int64_t end, int64_t width, std::vector<float>& memory) {
    bool are_so = rows.step == 1 || width == 1;
    for (int64_t row = begin; row < end; ++row) {
        are_so = are_so && rows.offsets[row] == rows.offsets[begin] + (row - begin) * width;
    }
    if (are_so) {
        return rows.at(begin);
    }
    memory.resize((end - begin) * width);
    for (int64_t i = 0; i < (end - begin) * width; ++i) {
        memory[i] = rows.at(begin + i / width)[i % width * rows.step];
    }
    return memory.data();
}

/// Packs for each product the rows of x that have the numbers of its rows of y.
void pack_chosen(const Rows& x, const std::vector<Product<QuantizedMatrix>>& products) {
    const Instructions& isa = instructions();
    for (const Product<QuantizedMatrix>& product : products) {
        share_rows(product.x.rows, product.x.columns, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                isa.pack(x.at(product.y_rows[row]), x.step, product.matrix.bits, product.x, row);
            }
        });
    }
}

template <class Matrix>
void multiply_all(const Rows& x, const std::vector<Matrix>& matrices, const std::vector<float*>& results) {
    if (matrices.empty() || matrices.front().columns == 0) {
        for (size_t i = 0; i < matrices.size(); ++i) {
            std::fill_n(results[i], x.count() * matrices[i].rows, 0.0f);
        }
        return;
    }
    for (int64_t begin = 0; begin < x.count(); begin += kBlockRows) {
        int64_t end = std::min(x.count(), begin + kBlockRows);
        PackedRows packed = pack(x, begin, end, matrices.front());
        std::vector<Product<Matrix>> products;
        for (size_t i = 0; i < matrices.size(); ++i) {
            products.push_back({matrices[i], packed, results[i] + begin * matrices[i].rows, nullptr});
        }
        Job<Matrix>(std::move(products)).run();
    }
}

template <class Matrix>
void multiply_one_and_add(const Rows& x, const Matrix& matrix, const Rows& addend, float* y) {
    std::vector<float> memory;
    for (int64_t begin = 0; begin < x.count(); begin += kBlockRows) {
        int64_t end = std::min(x.count(), begin + kBlockRows);
        const float* added = side_by_side(addend, begin, end, matrix.rows, memory);
        if (matrix.columns == 0) {
            std::copy_n(added, (end - begin) * matrix.rows, y + begin * matrix.rows);
            continue;
        }
        PackedRows packed = pack(x, begin, end, matrix);
        Job<Matrix>({{matrix, packed, y + begin * matrix.rows, nullptr, added}}).run();
    }
}

template <class Matrix>
void multiply_both(const Rows& x, const Matrix& gate, const Matrix& up, float* y) {
    std::vector<float> ups(std::min(x.count(), kBlockRows) * up.rows);
    for (int64_t begin = 0; begin < x.count(); begin += kBlockRows) {
        int64_t end = std::min(x.count(), begin + kBlockRows);
        float* gates = y + begin * gate.rows;
        if (gate.columns == 0) {
            std::fill_n(gates, (end - begin) * gate.rows, 0.0f);
            continue;
        }
        PackedRows packed = pack(x, begin, end, gate);
        Product<Matrix> up_product{up, packed, ups.data(), nullptr};
        Job<Matrix> job({{gate, packed, gates, nullptr}});
        job.share([&](int64_t number, int64_t first, int64_t last) {
            compute(job.isa(), job.product(number), first, last);
            compute(job.isa(), up_product, first, last);
            for (int64_t row = 0; row < packed.rows; ++row) {
                float* joined = gates + row * gate.rows + first;
                job.isa().swiglu(joined, ups.data() + row * gate.rows + first, last - first, joined);
            }
        });
    }
}

}  // namespace

void multiply(const Rows& x, const std::vector<QuantizedMatrix>& matrices, const std::vector<float*>& results) {
    multiply_all(x, matrices, results);
}

void multiply(const Rows& x, const std::vector<DenseMatrix>& matrices, const std::vector<float*>& results) {
    multiply_all(x, matrices, results);
}

void multiply_and_add(const Rows& x, const QuantizedMatrix& matrix, const Rows& addend, float* y) {
    multiply_one_and_add(x, matrix, addend, y);
}

void multiply_and_add(const Rows& x, const DenseMatrix& matrix, const Rows& addend, float* y) {
    multiply_one_and_add(x, matrix, addend, y);
}

void multiply_swiglu(const Rows& x, const QuantizedMatrix& gate, const QuantizedMatrix& up, float* y) {
    multiply_both(x, gate, up, y);
}

void multiply_swiglu(const Rows& x, const DenseMatrix& gate, const DenseMatrix& up, float* y) {
    multiply_both(x, gate, up, y);
}

void multiply_chosen(
    const Rows& x, const QuantizedMatrix& first, const std::vector<int64_t>& choices, int64_t num_matrices, float* y) {
    if (first.columns == 0) {
        std::fill_n(y, x.count() * first.rows, 0.0f);
        return;
    }
    std::vector<int64_t> order = rows_by_choice(choices, num_matrices);
    auto num_rows = static_cast<int64_t>(order.size());
    for (int64_t begin = 0; begin < num_rows; begin += kBlockRows) {
        int64_t end = std::min(num_rows, begin + kBlockRows);
        float* memory = scratch((end - begin) * first.columns);
        std::vector<Product<QuantizedMatrix>> products;
        for (int64_t place = begin; place < end;) {
            int64_t next = end_of_choice(order, choices, place, end);
            PackedRows packed{memory + (place - begin) * first.columns, next - place, first.columns};
            products.push_back({matrix_at(first, choices[order[place]]), packed, y, order.data() + place});
            place = next;
        }
        pack_chosen(x, products);
        Job<QuantizedMatrix>(std::move(products)).run();
    }
}

void expand_rows(const QuantizedMatrix& matrix, const std::vector<int64_t>& indices, float* values) {
    const Instructions& isa = instructions();
    share_rows(static_cast<int64_t>(indices.size()), matrix.columns, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            isa.expand(matrix, indices[i], values + i * matrix.columns);
        }
    });
}

void expand_rows(const DenseMatrix& matrix, const std::vector<int64_t>& indices, float* values) {
    const Instructions& isa = instructions();
    share_rows(static_cast<int64_t>(indices.size()), matrix.columns, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            isa.widen(matrix, indices[i], values + i * matrix.columns);
        }
    });
}

}  // namespace pomona
