#include "chosen.h"

#include <algorithm>
#include <utility>

#include "job.h"
#include "mapped_ranges.h"

namespace pomona {

namespace {

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

DenseMatrix matrix_at(const DenseMatrix& first, int64_t number) {
    DenseMatrix matrix = first;
    matrix.values = first.at(number * first.rows, 0);
    return matrix;
}

/// Parts of a matrix lie in ranges of their own, each with those of the other matrices.
bool bring_in_part(const void* begin, int64_t num_bytes) {
    const MappedRange* range = range_at(begin);
    return range != nullptr && bring_in(*range, begin, num_bytes);
}

bool bring_in_matrix(const QuantizedMatrix& matrix) {
    int64_t scale_bytes = matrix.rows * matrix.groups() * (matrix.scale_type == FloatType::float32 ? 4 : 2);
    bool is_missing = bring_in_part(matrix.codes, matrix.rows * matrix.row_bytes());
    is_missing = bring_in_part(matrix.scales, scale_bytes) || is_missing;
    return bring_in_part(matrix.biases, scale_bytes) || is_missing;
}

bool bring_in_matrix(const DenseMatrix& matrix) {
    return bring_in_part(matrix.values, matrix.rows * matrix.columns * matrix.value_bytes());
}

const void* start_of(const QuantizedMatrix& matrix) {
    return matrix.codes;
}
const void* start_of(const DenseMatrix& matrix) {
    return matrix.values;
}

/// Has those of mapped matrices read that are chosen by rows of a block and of the one behind it, which is then read
/// while this one is computed.
template <class Matrix>
void bring_in_chosen(const Matrix& first, const Choices& choices, const std::vector<int64_t>& order, int64_t begin) {
    if (range_at(start_of(first)) == nullptr || !may_be_missing()) {
        return;
    }
    bool is_any_missing = false;
    auto end = std::min<int64_t>(order.size(), begin + 2 * kBlockRows);
    for (int64_t place = begin; place < end; ++place) {
        int64_t number = choices.numbers[order[place]];
        if (place == begin || number != choices.numbers[order[place - 1]]) {
            is_any_missing = bring_in_matrix(matrix_at(first, number)) || is_any_missing;
        }
    }
    note_presence(is_any_missing);
}

/// Row numbers in the order of their choices, those of one choice in their own order.
std::vector<int64_t> rows_by_choice(const Choices& choices) {
    const std::vector<int64_t>& numbers = choices.numbers;
    std::vector<int64_t> order;
    for (size_t row = 0; row < numbers.size(); ++row) {
        if (numbers[row] >= 0 && numbers[row] < choices.num_matrices) {
            order.push_back(static_cast<int64_t>(row));
        }
    }
    std::stable_sort(
        order.begin(), order.end(), [&](int64_t left, int64_t right) { return numbers[left] < numbers[right]; });
    return order;
}

/// Rows of x that are multiplied as one job, in the order of their choices.
template <class Matrix>
struct Block {
    std::vector<Product<Matrix>> products;  // one for each choice, which fill the rows of y that its rows have in x
    std::vector<int64_t> begins;            // the place within the block of each product's first row
};

/// Calls act(block) for all rows, some at a time.
///
/// @param beside other matrices of the same choices that act reads, or null.
template <class Matrix, class Act>
void for_blocks(
    const Rows& x, const Matrix& first, const Matrix* beside, const Choices& choices, float* y, const Act& act) {
    const Instructions& isa = instructions();
    std::vector<int64_t> order = rows_by_choice(choices);
    auto num_rows = static_cast<int64_t>(order.size());
    int64_t whole_columns = (first.columns + kUnitColumns - 1) / kUnitColumns * kUnitColumns;
    for (int64_t begin = 0; begin < num_rows; begin += kBlockRows) {
        int64_t end = std::min(num_rows, begin + kBlockRows);
        bring_in_chosen(first, choices, order, begin);
        if (beside != nullptr) {
            bring_in_chosen(*beside, choices, order, begin);
        }
        float* memory = scratch((end - begin) * whole_columns);
        Block<Matrix> block;
        std::vector<size_t> products_of_rows;
        for (int64_t place = begin; place < end;) {
            int64_t next = place;
            while (next < end && choices.numbers[order[next]] == choices.numbers[order[place]]) {
                products_of_rows.push_back(block.products.size());
                ++next;
            }
            PackedRows packed{memory + (place - begin) * whole_columns, next - place, first.columns};
            block.products.push_back({matrix_at(first, choices.numbers[order[place]]), packed, y, &order[place]});
            block.begins.push_back(place - begin);
            place = next;
        }
        share_rows(end - begin, first.columns, [&](int64_t from, int64_t to) {
            for (int64_t row = from; row < to; ++row) {
                size_t number = products_of_rows[row];
                const Product<Matrix>& product = block.products[number];
                pack_row(isa, first, x.at(order[begin + row]), x.step, product.x, row - block.begins[number]);
            }
        });
        act(std::move(block));
    }
}

template <class Matrix>
void multiply_each(const Rows& x, const Matrix& first, const Choices& choices, float* y) {
    if (first.columns == 0) {
        std::fill_n(y, x.count() * first.rows, 0.0f);
        return;
    }
    for_blocks<Matrix>(
        x, first, nullptr, choices, y, [](Block<Matrix> block) { Job<Matrix>(std::move(block.products)).run(); });
}

template <class Matrix>
void multiply_each_gated(
    const Rows& x, const Matrix& gate, const Matrix& up, Gate join, const Choices& choices, float* y) {
    if (gate.columns == 0) {
        std::fill_n(y, x.count() * gate.rows, 0.0f);
        return;
    }
    std::vector<float> ups(std::min(x.count(), kBlockRows) * up.rows);
    for_blocks(x, gate, &up, choices, y, [&](Block<Matrix> block) {
        Job<Matrix> job(std::move(block.products));
        auto act = join == Gate::swiglu ? job.isa().swiglu : job.isa().geglu;
        job.share([&](int64_t number, int64_t first, int64_t last) {
            const Product<Matrix>& gates = job.product(number);
            float* own = ups.data() + block.begins[number] * up.rows;
            int64_t choice = choices.numbers[gates.y_rows[0]];
            compute(job.isa(), gates, first, last);
            compute(job.isa(), Product<Matrix>{matrix_at(up, choice), gates.x, own, nullptr}, first, last);
            for (int64_t row = 0; row < gates.x.rows; ++row) {
                float* joined = y + gates.y_rows[row] * gate.rows + first;
                act(joined, own + row * up.rows + first, last - first, joined);
            }
        });
    });
}

}  // namespace

void multiply_chosen(const Rows& x, const QuantizedMatrix& first, const Choices& choices, float* y) {
    multiply_each(x, first, choices, y);
}

void multiply_chosen(const Rows& x, const DenseMatrix& first, const Choices& choices, float* y) {
    multiply_each(x, first, choices, y);
}

void multiply_chosen_gated(const Rows& x,
                           const QuantizedMatrix& gate,
                           const QuantizedMatrix& up,
                           Gate join,
                           const Choices& choices,
                           float* y) {
    multiply_each_gated(x, gate, up, join, choices, y);
}

void multiply_chosen_gated(
    const Rows& x, const DenseMatrix& gate, const DenseMatrix& up, Gate join, const Choices& choices, float* y) {
    multiply_each_gated(x, gate, up, join, choices, y);
}

}  // namespace pomona
