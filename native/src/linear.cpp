#include "linear.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "instruction_set.h"
#include "pool.h"

namespace pomona {

namespace {

// Rows that are packed together: of a chunk of columns so many fit the second-level cache, beside what else is there.
constexpr int64_t kBlockRows = 128;

// What a thread should have to do before the next piece, in floats touched or multiply-adds. Less is lost in sharing,
// more is lost in waiting for the last.
constexpr int64_t kLeastPackWork = 16384;
constexpr int64_t kLeastPieceWork = 1 << 16;
constexpr int64_t kMostPieceWork = 1 << 20;
constexpr int64_t kPiecesPerThread = 4;

// Unpacking a weight costs as much as multiplying it with so many rows.
constexpr int64_t kRowsPerUnpacking = 3;

constexpr size_t kAlignment = 64;

/// Memory that a thread keeps for its next product.
float* scratch(size_t num_floats) {
    struct Free {
        void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t(kAlignment)); }
    };
    thread_local std::unique_ptr<float[], Free> memory;
    thread_local size_t capacity = 0;
    if (num_floats > capacity) {
        memory.reset();
        capacity = 0;
        memory.reset(static_cast<float*>(::operator new[](num_floats * sizeof(float), std::align_val_t(kAlignment))));
        capacity = num_floats;
    }
    return memory.get();
}

/// Products that are computed as one job.
struct Batch {
    const Rows& x;
    const std::vector<int64_t>& order;  // which row of x stands at each place
    int64_t begin;                      // the batch's first place
    int64_t end;                        // and the one behind its last
    std::vector<Product> products;
};

void pack(const Batch& batch, const Instructions& isa, int64_t columns) {
    struct Place {
        const Product* product;
        int64_t row;
    };
    std::vector<Place> places;
    for (const Product& product : batch.products) {
        for (int64_t row = 0; row < product.x.rows; ++row) {
            places.push_back({&product, row});
        }
    }
    int64_t num_rows = batch.end - batch.begin;
    int64_t piece_rows = std::max<int64_t>(1, kLeastPackWork / columns);
    Pool::shared().run((num_rows + piece_rows - 1) / piece_rows, [&](int64_t piece) {
        int64_t end = std::min(num_rows, (piece + 1) * piece_rows);
        for (int64_t i = piece * piece_rows; i < end; ++i) {
            const auto& [product, row] = places[i];
            const float* from = batch.x.values + batch.x.offsets[batch.order[batch.begin + i]];
            isa.pack(from, batch.x.step, product->matrix.bits, product->x, row);
        }
    });
}

/// How many outputs a thread takes at a time.
int64_t piece_outputs(const Batch& batch, const Instructions& isa) {
    const QuantizedMatrix& matrix = batch.products.front().matrix;
    auto num_products = static_cast<int64_t>(batch.products.size());
    int64_t rows = (batch.end - batch.begin) / num_products + kRowsPerUnpacking;
    int64_t total = matrix.rows * matrix.columns * rows * num_products;
    int64_t wanted = total / (Pool::shared().num_threads() * kPiecesPerThread);
    wanted = std::clamp(wanted, kLeastPieceWork, kMostPieceWork);
    int64_t tiles = wanted / (rows * matrix.columns * isa.output_tile);
    return std::max<int64_t>(1, tiles) * isa.output_tile;
}

void multiply(const Batch& batch, const Instructions& isa) {
    const QuantizedMatrix& matrix = batch.products.front().matrix;
    pack(batch, isa, matrix.columns);
    int64_t outputs = piece_outputs(batch, isa);
    int64_t pieces = (matrix.rows + outputs - 1) / outputs;  // of each product
    Pool::shared().run(pieces * static_cast<int64_t>(batch.products.size()), [&](int64_t piece) {
        int64_t begin = piece % pieces * outputs;
        isa.multiply(batch.products[piece / pieces], begin, std::min(matrix.rows, begin + outputs));
    });
}

QuantizedMatrix matrix_at(const QuantizedMatrix& first, int64_t number) {
    int64_t scale_bytes = first.scale_type == ScaleType::float32 ? 4 : 2;
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

/// Places from `begin` that have the same choice, up to `end`.
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

}  // namespace

void multiply(const Rows& x, const QuantizedMatrix& matrix, float* y) {
    multiply_chosen(x, matrix, std::vector<int64_t>(x.offsets.size(), 0), 1, y);
}

void multiply_chosen(
    const Rows& x, const QuantizedMatrix& first, const std::vector<int64_t>& choices, int64_t num_matrices, float* y) {
    if (first.rows == 0) {
        return;
    }
    if (first.columns == 0) {
        std::fill_n(y, x.offsets.size() * first.rows, 0.0f);
        return;
    }
    const Instructions& isa = instructions();
    std::vector<int64_t> order = rows_by_choice(choices, num_matrices);
    auto num_rows = static_cast<int64_t>(order.size());
    for (int64_t begin = 0; begin < num_rows; begin += kBlockRows) {
        int64_t end = std::min(num_rows, begin + kBlockRows);
        float* packed = scratch((end - begin) * first.columns);
        Batch batch{x, order, begin, end, {}};
        for (int64_t place = begin; place < end;) {
            int64_t next = end_of_choice(order, choices, place, end);
            float* values = packed + (place - begin) * first.columns;
            QuantizedMatrix matrix = matrix_at(first, choices[order[place]]);
            batch.products.push_back({matrix, {values, next - place, first.columns}, y, order.data() + place});
            place = next;
        }
        multiply(batch, isa);
    }
}

void expand_rows(const QuantizedMatrix& matrix, const std::vector<int64_t>& indices, float* values) {
    const Instructions& isa = instructions();
    auto num_rows = static_cast<int64_t>(indices.size());
    if (matrix.columns == 0) {
        return;
    }
    int64_t piece_rows = std::max<int64_t>(1, kLeastPackWork / matrix.columns);
    Pool::shared().run((num_rows + piece_rows - 1) / piece_rows, [&](int64_t piece) {
        int64_t end = std::min(num_rows, (piece + 1) * piece_rows);
        for (int64_t i = piece * piece_rows; i < end; ++i) {
            isa.expand(matrix, indices[i], values + i * matrix.columns);
        }
    });
}

}  // namespace pomona
