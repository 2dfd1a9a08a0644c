#pragma once

#include <cstring>

#include "../kernels.h"
#include "attention.h"
#include "delta.h"
#include "dense.h"
#include "full_attention.h"
#include "strip.h"
#include "vector.h"
#include "weights.h"

/// Products with matrices, written once for any vector (see vector.h).
///
/// `Isa` offers besides: `kRowTile` (rows of x) and `kOutputTile` (outputs, at most 8) computed together, `kFusedTiles`
/// of weights that are stored as floats (see below), `widen` (half floats to float32, a few) and `load_half` (a vector
/// of them), `sums`, and `Unpack<bits>`, which turns the codes of a unit into vectors in an order of its own.
///
/// `Source` is how weights are read: of a `Matrix`, through a `Strip` of a few of its rows. Made of a strip, it offers
/// `fetch(unit)`, for what a thread will need later, and (n, unit, weights), for a unit of the strip's row `n`. Up to
/// `kFusedTiles` tiles of rows read them so; for more, a strip is written out as float32 first.

namespace pomona::tile {

/// The floats from one row of sums to the next in the small array that `Isa::sums` fills.
constexpr int kSumsStride = 8;

/// Up to so many rows of x stay in the second-level cache with all their columns.
constexpr int64_t kCachedRows = 32;

/// Which code of a unit stands at each place after unpacking.
struct Order {
    uint8_t code[kUnitColumns];
};

/// Asks `Unpack` itself: codes that spell one bit of their own index come back in its order.
template <class Isa, int bits>
Order order_of() {
    Order order{};
    for (int plane = 0; plane < 5; ++plane) {
        uint8_t unit[4 * bits] = {};
        for (int code = 0; code < kUnitColumns; ++code) {
            unit[code * bits / 8] |= static_cast<uint8_t>(((code >> plane) & 1) << (code * bits % 8));
        }
        typename Isa::Vec vectors[kUnitVectors<Isa>];
        typename Isa::template Unpack<bits>()(unit, vectors);
        float values[kUnitColumns];
        for (int i = 0; i < kUnitVectors<Isa>; ++i) {
            Isa::store(values + i * Isa::kLanes, vectors[i]);
        }
        for (int place = 0; place < kUnitColumns; ++place) {
            order.code[place] |= static_cast<uint8_t>(static_cast<int>(values[place]) << plane);
        }
    }
    return order;
}

/// Weights of codes: scale * code + bias, rounded once where there is an FMA.
template <class Isa, int bits>
class Codes {
  public:
    using Matrix = QuantizedMatrix;
    using Strip = tile::Strip<Isa>;
    static constexpr int kFusedTiles = 1;

    explicit Codes(const Strip& strip) : strip_(strip), foresight_(strip.foresight) {}

    POMONA_INLINE void fetch(int64_t) { foresight_.template fetch<bits>(); }

    POMONA_INLINE void operator()(int n, int64_t unit, typename Isa::Vec (&weights)[kUnitVectors<Isa>]) const {
        unpack_(strip_.codes[n] + unit * 4 * bits, weights);
        typename Isa::Vec scale = Isa::broadcast(strip_.scales[n] + (unit >> strip_.group_shift));
        typename Isa::Vec bias = Isa::broadcast(strip_.biases[n] + (unit >> strip_.group_shift));
        POMONA_UNROLL
        for (int i = 0; i < kUnitVectors<Isa>; ++i) {
            weights[i] = Isa::fma(scale, weights[i], bias);
        }
    }

  private:
    const Strip& strip_;
    typename Isa::template Unpack<bits> unpack_;
    Foresight<Isa> foresight_;
};

/// Writes a strip's weights: vector after vector, and for each the rows of the strip side by side.
template <class Isa, class Source>
void expand_strip(const typename Source::Strip& strip, float* tile) {
    Source source(strip);
    for (int64_t unit = 0; unit < strip.units; ++unit) {
        source.fetch(unit);
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            typename Isa::Vec weights[kUnitVectors<Isa>];
            source(n, unit, weights);
            POMONA_UNROLL
            for (int i = 0; i < kUnitVectors<Isa>; ++i) {
                Isa::store(tile + (i * Isa::kOutputTile + n) * Isa::kLanes, weights[i]);
            }
        }
        tile += kUnitColumns * Isa::kOutputTile;
    }
}

/// One chunk of a product: which columns, filled up to whole units, and where its outputs begin and end.
struct Part {
    int64_t begin_column;
    int64_t columns;
    int64_t first_output;
    int64_t outputs;
};

/// Adds the sums of a chunk to the outputs; the first chunk's are the outputs so far, and the last one's complete them.
template <class Isa, int rows, class Matrix>
POMONA_INLINE void deliver(const typename Isa::Vec (&partial)[rows][Isa::kOutputTile],
                           const Product<Matrix>& product,
                           const Part& part,
                           int64_t first_row) {
    float sums[rows][kSumsStride];
    Isa::template sums<rows>(partial, sums);
    bool is_first = part.begin_column == 0;
    bool adds = product.addend && part.begin_column + part.columns >= product.matrix.columns;
    for (int m = 0; m < rows; ++m) {
        int64_t row = product.y_rows ? product.y_rows[first_row + m] : first_row + m;
        int64_t place = row * product.matrix.rows + part.first_output;
        float* y = product.y + place;
        if (part.outputs == Isa::kOutputTile && is_first && !adds) {
            std::memcpy(y, sums[m], Isa::kOutputTile * sizeof(float));
            continue;
        }
        for (int n = 0; n < part.outputs; ++n) {
            float sum = is_first ? sums[m][n] : y[n] + sums[m][n];
            y[n] = adds ? sum + product.addend[place + n] : sum;
        }
    }
}

/// Rows of x times a strip, straight from where it is stored.
template <class Isa, class Source, int rows>
void multiply_fused(const typename Source::Strip& strip,
                    const float* x,
                    int64_t x_stride,
                    typename Isa::Vec (&partial)[rows][Isa::kOutputTile]) {
    Source source(strip);
    typename Isa::Vec sums[rows][Isa::kOutputTile];
    POMONA_UNROLL
    for (int n = 0; n < Isa::kOutputTile; ++n) {
        POMONA_UNROLL
        for (int m = 0; m < rows; ++m) {
            sums[m][n] = Isa::zero();
        }
    }
    for (int64_t unit = 0; unit < strip.units; ++unit) {
        source.fetch(unit);
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            typename Isa::Vec weights[kUnitVectors<Isa>];
            source(n, unit, weights);
            POMONA_UNROLL
            for (int i = 0; i < kUnitVectors<Isa>; ++i) {
                POMONA_UNROLL
                for (int m = 0; m < rows; ++m) {
                    sums[m][n] = Isa::fma(weights[i], Isa::load(x + m * x_stride + i * Isa::kLanes), sums[m][n]);
                }
            }
        }
        x += kUnitColumns;
    }
    POMONA_UNROLL
    for (int m = 0; m < rows; ++m) {
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            partial[m][n] = sums[m][n];
        }
    }
}

/// Rows of x times a strip that `expand_strip` has written.
template <class Isa, int rows>
POMONA_INLINE void multiply_expanded(const float* tile,
                                     int64_t vectors,
                                     const float* x,
                                     int64_t x_stride,
                                     typename Isa::Vec (&partial)[rows][Isa::kOutputTile]) {
    typename Isa::Vec sums[rows][Isa::kOutputTile];
    POMONA_UNROLL
    for (int m = 0; m < rows; ++m) {
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            sums[m][n] = Isa::zero();
        }
    }
    for (int64_t i = 0; i < vectors; ++i) {
        typename Isa::Vec values[rows];
        POMONA_UNROLL
        for (int m = 0; m < rows; ++m) {
            values[m] = Isa::load(x + m * x_stride);
        }
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            typename Isa::Vec weights = Isa::load(tile + n * Isa::kLanes);
            POMONA_UNROLL
            for (int m = 0; m < rows; ++m) {
                sums[m][n] = Isa::fma(weights, values[m], sums[m][n]);
            }
        }
        tile += Isa::kOutputTile * Isa::kLanes;
        x += Isa::kLanes;
    }
    POMONA_UNROLL
    for (int m = 0; m < rows; ++m) {
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            partial[m][n] = sums[m][n];
        }
    }
}

/// All rows, `rows` at a time and then ever fewer, through `multiply_expanded`.
template <class Isa, int rows, class Matrix>
void multiply_rows(const Product<Matrix>& product, const Part& part, const float* tile, int64_t first_row) {
    int64_t row = first_row;
    for (; row + rows <= product.x.rows; row += rows) {
        typename Isa::Vec partial[rows][Isa::kOutputTile];
        const float* x = product.x.at(part.begin_column, row, part.columns);
        multiply_expanded<Isa, rows>(tile, part.columns / Isa::kLanes, x, part.columns, partial);
        deliver<Isa, rows>(partial, product, part, row);
    }
    if constexpr (rows > 1) {
        if (row < product.x.rows) {
            multiply_rows<Isa, rows - 1>(product, part, tile, row);
        }
    }
}

/// All rows, `rows` at a time and then ever fewer, through `multiply_fused`.
template <class Isa, class Source, int rows>
void multiply_few(const Product<typename Source::Matrix>& product,
                  const Part& part,
                  const typename Source::Strip& strip,
                  int64_t first_row) {
    int64_t row = first_row;
    for (; row + rows <= product.x.rows; row += rows) {
        typename Isa::Vec partial[rows][Isa::kOutputTile];
        const float* x = product.x.at(part.begin_column, row, part.columns);
        multiply_fused<Isa, Source, rows>(strip, x, part.columns, partial);
        deliver<Isa, rows>(partial, product, part, row);
    }
    if constexpr (rows > 1) {
        if (row < product.x.rows) {
            multiply_few<Isa, Source, rows - 1>(product, part, strip, row);
        }
    }
}

/// All rows times one strip. `tile` has place for its weights.
template <class Isa, class Source>
void multiply_part(
    const Product<typename Source::Matrix>& product, int64_t output, int64_t end, int64_t column, float* tile) {
    int64_t columns = columns_of_chunk(product.matrix.columns - column);
    Part part{column, columns, output, vector::smaller(Isa::kOutputTile, end - output)};
    typename Source::Strip strip(product.matrix, output, end, column, columns);
    if (product.x.rows <= Isa::kRowTile * Source::kFusedTiles) {
        return multiply_few<Isa, Source, Isa::kRowTile>(product, part, strip, 0);
    }
    expand_strip<Isa, Source>(strip, tile);
    multiply_rows<Isa, Isa::kRowTile>(product, part, tile, 0);
}

template <class Isa, class Source>
void multiply_outputs(const Product<typename Source::Matrix>& product, int64_t begin, int64_t end) {
    alignas(64) float tile[Isa::kOutputTile * kChunkColumns];
    int64_t columns = product.matrix.columns;
    if (product.x.rows <= kCachedRows) {  // the matrix is what comes from memory: take it as it lies there
        for (int64_t output = begin; output < end; output += Isa::kOutputTile) {
            for (int64_t column = 0; column < columns; column += columns_of_chunk(columns - column)) {
                multiply_part<Isa, Source>(product, output, end, column, tile);
            }
        }
        return;
    }
    for (int64_t column = 0; column < columns; column += columns_of_chunk(columns - column)) {  // x's stays cached
        for (int64_t output = begin; output < end; output += Isa::kOutputTile) {
            multiply_part<Isa, Source>(product, output, end, column, tile);
        }
    }
}

template <class Isa, int bits>
void pack_bits(const float* row, int64_t step, const PackedRows& packed, int64_t packed_row) {
    static const Order order = order_of<Isa, bits>();
    for (int64_t column = 0; column < packed.columns; column += kChunkColumns) {
        int64_t columns = vector::smaller(kChunkColumns, packed.columns - column);
        float* values = packed.at(column, packed_row, columns);
        for (int64_t unit = 0; unit < columns; unit += kUnitColumns) {
            const float* from = row + (column + unit) * step;
            for (int place = 0; place < kUnitColumns; ++place) {
                values[unit + place] = from[order.code[place] * step];
            }
        }
    }
}

template <class Isa, int bits>
void expand_bits(const QuantizedMatrix& matrix, int64_t row, float* values) {
    static const Order order = order_of<Isa, bits>();
    for (int64_t column = 0; column < matrix.columns; column += kChunkColumns) {
        int64_t columns = vector::smaller(kChunkColumns, matrix.columns - column);
        Strip<Isa> strip(matrix, row, row + 1, column, columns);
        Codes<Isa, bits> codes(strip);
        for (int64_t unit = 0; unit < strip.units; ++unit) {
            typename Isa::Vec weights[kUnitVectors<Isa>];
            codes(0, unit, weights);
            float unpacked[kUnitColumns];
            for (int i = 0; i < kUnitVectors<Isa>; ++i) {
                Isa::store(unpacked + i * Isa::kLanes, weights[i]);
            }
            for (int place = 0; place < kUnitColumns; ++place) {
                values[column + unit * kUnitColumns + order.code[place]] = unpacked[place];
            }
        }
    }
}

/// Calls `act.operator()<bits>()` for the number of bits at hand.
template <class Act>
void with_bits(int bits, Act act) {
    switch (bits) {
        case 2:
            return act.template operator()<2>();
        case 3:
            return act.template operator()<3>();
        case 4:
            return act.template operator()<4>();
        case 5:
            return act.template operator()<5>();
        case 6:
            return act.template operator()<6>();
        default:
            return act.template operator()<8>();
    }
}

template <class Isa>
void pack(const float* row, int64_t step, int bits, const PackedRows& packed, int64_t packed_row) {
    with_bits(bits, [&]<int width>() { pack_bits<Isa, width>(row, step, packed, packed_row); });
}

template <class Isa>
void multiply(const Product<QuantizedMatrix>& product, int64_t begin, int64_t end) {
    with_bits(product.matrix.bits, [&]<int width>() { multiply_outputs<Isa, Codes<Isa, width>>(product, begin, end); });
}

template <class Isa>
void expand(const QuantizedMatrix& matrix, int64_t row, float* values) {
    with_bits(matrix.bits, [&]<int width>() { expand_bits<Isa, width>(matrix, row, values); });
}

template <class Isa>
void multiply_dense(const Product<DenseMatrix>& product, int64_t begin, int64_t end) {
    with_type(product.matrix.type,
              [&]<FloatType type>() { multiply_outputs<Isa, Floats<Isa, type>>(product, begin, end); });
}

template <class Isa>
constexpr Instructions instructions_of(const char* name) {
    return Instructions{
        name,
        Isa::kOutputTile,
        &pack<Isa>,
        &multiply<Isa>,
        &expand<Isa>,
        &pack_plain<Isa>,
        &multiply_dense<Isa>,
        &widen<Isa>,
        &spread<Isa>,
        &vector::normalize<Isa>,
        &vector::center<Isa>,
        &vector::gelu<Isa>,
        &vector::swiglu<Isa>,
        &vector::geglu<Isa>,
        &vector::sigmoid_gate<Isa>,
        &vector::soft_bound<Isa>,
        &vector::dot<Isa>,
        &vector::convolve<Isa>,
        &vector::remember<Isa>,
        &vector::rotate<Isa>,
        &vector::rotate_neighbours<Isa>,
        &vector::attend<Isa>,
        &vector::attend_fully<Isa>,
        &vector::peaks<Isa>,
        &vector::weigh<Isa>,
        &vector::sum_weights<Isa>,
    };
}

}  // namespace pomona::tile
