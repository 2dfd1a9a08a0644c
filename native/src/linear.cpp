#include "linear.h"

#include <algorithm>
#include <utility>

#include "job.h"

namespace pomona {

namespace {

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

/// Some of the rows of a part.
struct Piece {
    const LowRank* part;
    int64_t begin;
    int64_t end;

    int64_t count() const { return end - begin; }
};

/// The parts' rows in pieces that together are packed at once.
std::vector<std::vector<Piece>> blocks_of(const std::vector<LowRank>& parts) {
    std::vector<std::vector<Piece>> blocks;
    int64_t room = 0;
    for (const LowRank& part : parts) {
        auto num_rows = static_cast<int64_t>(part.rows.size());
        for (int64_t begin = 0; begin < num_rows;) {
            if (room == 0) {
                blocks.emplace_back();
                room = kBlockRows;
            }
            int64_t end = std::min(num_rows, begin + room);
            blocks.back().push_back({&part, begin, end});
            room -= end - begin;
            begin = end;
        }
    }
    return blocks;
}

/// Computes scale * x * transposed down of some rows, one behind the other.
void multiply_down(const Rows& x, const std::vector<Piece>& pieces, float* y) {
    int64_t columns = pieces.front().part->down.columns;
    int64_t whole_columns = (columns + kUnitColumns - 1) / kUnitColumns * kUnitColumns;
    int64_t num_rows = 0;
    for (const Piece& piece : pieces) {
        num_rows += piece.count();
    }
    float* memory = scratch(num_rows * whole_columns);
    const Instructions& isa = instructions();
    std::vector<Product<DenseMatrix>> products;
    for (const Piece& piece : pieces) {
        PackedRows packed{memory, piece.count(), columns};
        share_rows(packed.rows, columns, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                isa.pack_plain(x.at(piece.part->rows[piece.begin + row]), x.step, packed, row);
            }
        });
        products.push_back({piece.part->down, packed, y, nullptr});
        memory += piece.count() * whole_columns;
        y += piece.count() * piece.part->down.rows;
    }
    Job<DenseMatrix>(products).run();
    for (size_t i = 0; i < pieces.size(); ++i) {
        for (int64_t place = 0; place < pieces[i].count() * pieces[i].part->down.rows; ++place) {
            products[i].y[place] *= pieces[i].part->scale;
        }
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

void add_low_rank(const Rows& x, const std::vector<LowRank>& parts, const Rows& addend, int64_t width, float* y) {
    struct Addition {
        const LowRank* part = nullptr;
        int64_t place = 0;  // of its factors
    };
    std::vector<Addition> additions(x.count());
    std::vector<float> factors;
    int64_t most_rank = 0;
    for (const std::vector<Piece>& block : blocks_of(parts)) {
        auto first = static_cast<int64_t>(factors.size());
        int64_t place = first;
        for (const Piece& piece : block) {
            for (int64_t i = piece.begin; i < piece.end; ++i) {
                additions[piece.part->rows[i]] = {piece.part, place};
                place += piece.part->down.rows;
            }
            most_rank = std::max(most_rank, piece.part->down.rows);
        }
        factors.resize(place);
        multiply_down(x, block, factors.data() + first);
    }
    const Instructions& isa = instructions();
    share_rows(x.count(), width * (1 + most_rank / kRowsPerUnpacking), [&](int64_t begin, int64_t end) {
        std::vector<float> memory;
        for (int64_t row = begin; row < end; ++row) {
            const float* added = side_by_side(addend, row, row + 1, width, memory);
            if (const LowRank* part = additions[row].part) {
                isa.spread(factors.data() + additions[row].place, part->up, added, y + row * width);
            } else {
                std::copy_n(added, width, y + row * width);
            }
        }
    });
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
