#pragma once

#include <cstring>

#include "../kernels.h"
#include "strip.h"
#include "vector.h"

/// Rows of a matrix that is not quantized as the products read them (see tile.h): floats in the order of their columns.
namespace pomona::tile {

/// Calls `act.operator()<type>()` for the type at hand.
template <class Act>
void with_type(FloatType type, Act act) {
    switch (type) {
        case FloatType::float32:
            return act.template operator()<FloatType::float32>();
        case FloatType::bfloat16:
            return act.template operator()<FloatType::bfloat16>();
        case FloatType::float16:
            return act.template operator()<FloatType::float16>();
    }
}

template <FloatType type>
constexpr int kValueBytes = type == FloatType::float32 ? 4 : 2;

/// A vector of floats as they are stored.
template <class Isa, FloatType type>
POMONA_INLINE typename Isa::Vec load_wide(const uint8_t* from) {
    if constexpr (type == FloatType::float32) {
        return Isa::load(reinterpret_cast<const float*>(from));
    } else {
        return Isa::template load_half<type == FloatType::float16>(reinterpret_cast<const uint16_t*>(from));
    }
}

/// A few rows of the matrix within one chunk.
template <class Isa>
class DenseStrip {
  public:
    /// Rows past `end` repeat the one before it, so that a tile at the edge reads nothing outside.
    DenseStrip(const DenseMatrix& matrix, int64_t first_row, int64_t end, int64_t begin_column, int64_t columns)
        : units(columns / kUnitColumns) {
        int64_t tile_bytes = Isa::kOutputTile * matrix.columns * matrix.value_bytes();
        // A later tile, unless a tile is so large that the first-level cache would lose it: then the same rows.
        bool is_small = tile_bytes <= kCachedBytes;
        ahead = is_small ? tile_bytes * (1 + kLeastBytesAhead / (tile_bytes + 1)) : kBytesAheadInRow;
        int64_t left = matrix.columns - begin_column;
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            values[n] = matrix.at(vector::smaller(first_row + n, end - 1), begin_column);
            if (left < columns) {  // less than a unit
                std::memset(filled_[n], 0, sizeof(filled_[n]));
                std::memcpy(filled_[n], values[n], left * matrix.value_bytes());
                values[n] = filled_[n];
            }
        }
    }
    DenseStrip(const DenseStrip&) = delete;
    DenseStrip& operator=(const DenseStrip&) = delete;

    const uint8_t* values[Isa::kOutputTile];
    int64_t units;
    int64_t ahead;  ///< bytes to what a thread will need next

  private:
    // Measured with rows of 1 to 32 KiB.
    static constexpr int64_t kLeastBytesAhead = 4096;
    static constexpr int64_t kCachedBytes = 32768;
    static constexpr int64_t kBytesAheadInRow = 1024;

    uint8_t filled_[Isa::kOutputTile][kUnitColumns * sizeof(float)];
};

/// Weights that are stored as floats.
template <class Isa, FloatType type>
class Floats {
  public:
    using Matrix = DenseMatrix;
    using Strip = DenseStrip<Isa>;
    static constexpr int kFusedTiles = Isa::kFusedTiles;

    explicit Floats(const Strip& strip) : ahead_(strip.ahead) {
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            values_[n] = strip.values[n];
        }
    }

    /// Fetches what will be needed after a unit. An address behind the end is no error.
    POMONA_INLINE void fetch(int64_t unit) const {
        POMONA_UNROLL
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            uintptr_t later = reinterpret_cast<uintptr_t>(values_[n]) + unit * kUnitBytes + ahead_;
            POMONA_UNROLL
            for (int line = 0; line < kUnitBytes; line += 64) {
                __builtin_prefetch(reinterpret_cast<const void*>(later + line));
            }
        }
    }

    POMONA_INLINE void operator()(int n, int64_t unit, typename Isa::Vec (&weights)[kUnitVectors<Isa>]) const {
        POMONA_UNROLL
        for (int i = 0; i < kUnitVectors<Isa>; ++i) {
            weights[i] = load_wide<Isa, type>(values_[n] + unit * kUnitBytes + i * Isa::kLanes * kValueBytes<type>);
        }
    }

  private:
    static constexpr int64_t kUnitBytes = kUnitColumns * kValueBytes<type>;

    const uint8_t* values_[Isa::kOutputTile];
    int64_t ahead_;
};

template <class Isa>
void pack_plain(const float* row, int64_t step, const PackedRows& packed, int64_t packed_row) {
    for (int64_t column = 0; column < packed.columns;) {
        int64_t left = packed.columns - column;
        int64_t columns = columns_of_chunk(left);
        float* values = packed.at(column, packed_row, columns);
        for (int64_t i = 0; i < columns; ++i) {
            values[i] = i < left ? row[(column + i) * step] : 0.0f;
        }
        column += columns;
    }
}

template <class Isa, FloatType type>
void widen_values(const uint8_t* stored, int64_t count, float* values) {
    vector::for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        const uint8_t* from = stored + i * kValueBytes<type>;
        if (lanes == Isa::kLanes) {
            return Isa::store(values + i, load_wide<Isa, type>(from));
        }
        uint8_t some[Isa::kLanes * kValueBytes<type>] = {};
        std::memcpy(some, from, lanes * kValueBytes<type>);
        Isa::store_part(values + i, load_wide<Isa, type>(some), lanes);
    });
}

template <class Isa>
void widen(const DenseMatrix& matrix, int64_t row, float* values) {
    with_type(matrix.type,
              [&]<FloatType type>() { widen_values<Isa, type>(matrix.at(row, 0), matrix.columns, values); });
}

/// A vector of floats as they are stored, of which `lanes` are there.
template <class Isa, FloatType type>
inline typename Isa::Vec load_wide_some(const uint8_t* from, int64_t lanes) {
    if (lanes == Isa::kLanes) {
        return load_wide<Isa, type>(from);
    }
    uint8_t some[Isa::kLanes * kValueBytes<type>] = {};
    std::memcpy(some, from, lanes * kValueBytes<type>);
    return load_wide<Isa, type>(some);
}

/// So many vectors of `spread`, from column `begin` on; each has its sum, so that none waits for another.
template <class Isa, FloatType type, int vectors>
POMONA_INLINE void spread_vectors(
    const float* factors, const DenseMatrix& matrix, const float* addend, int64_t begin, int64_t lanes, float* y) {
    typename Isa::Vec sums[vectors];
    POMONA_UNROLL
    for (int i = 0; i < vectors; ++i) {
        sums[i] = Isa::zero();
    }
    for (int64_t row = 0; row < matrix.rows; ++row) {
        auto factor = Isa::broadcast(factors + row);
        const uint8_t* values = matrix.at(row, begin);
        POMONA_UNROLL
        for (int i = 0; i < vectors; ++i) {
            auto weights = load_wide_some<Isa, type>(values + i * Isa::kLanes * kValueBytes<type>, lanes);
            sums[i] = Isa::fma(factor, weights, sums[i]);
        }
    }
    POMONA_UNROLL
    for (int i = 0; i < vectors; ++i) {
        int64_t place = begin + i * Isa::kLanes;
        auto added = vector::load_some<Isa>(addend + place, lanes);
        vector::store_some<Isa>(y + place, Isa::add(added, sums[i]), lanes);
    }
}

template <class Isa, FloatType type>
void spread_values(const float* factors, const DenseMatrix& matrix, const float* addend, float* y) {
    constexpr int kVectors = 4;
    int64_t place = 0;
    for (; place + kVectors * Isa::kLanes <= matrix.columns; place += kVectors * Isa::kLanes) {
        spread_vectors<Isa, type, kVectors>(factors, matrix, addend, place, Isa::kLanes, y);
    }
    for (; place < matrix.columns; place += Isa::kLanes) {
        int64_t lanes = vector::smaller(Isa::kLanes, matrix.columns - place);
        spread_vectors<Isa, type, 1>(factors, matrix, addend, place, lanes, y);
    }
}

template <class Isa>
void spread(const float* factors, const DenseMatrix& matrix, const float* addend, float* y) {
    with_type(matrix.type, [&]<FloatType type>() { spread_values<Isa, type>(factors, matrix, addend, y); });
}

}  // namespace pomona::tile
