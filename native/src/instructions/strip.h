#pragma once

#include <cstring>

#include "../kernels.h"
#include "vector.h"

/// Rows of a quantized matrix as the products read them (see tile.h).
namespace pomona::tile {

template <class Isa>
constexpr int kUnitVectors = kUnitColumns / Isa::kLanes;

/// Where the two bytes of each code lie, and how far down it must move: for the unpacking of codes that straddle bytes.
/// The first half of a unit is read through a window of bytes at its start, the second through one that ends with it.
template <int bits>
struct Straddling {
    static constexpr int kWindowBytes = bits < 4 ? 8 : 16;
    static constexpr int kSecondWindow = 4 * bits - kWindowBytes;

    uint8_t bytes[4 * kUnitColumns];  ///< for each code: its byte within its window, the next, and two beyond any
    int32_t shifts[kUnitColumns];

    constexpr Straddling() : bytes(), shifts() {
        for (int code = 0; code < kUnitColumns; ++code) {
            int first = code * bits / 8 - (code < kUnitColumns / 2 ? 0 : kSecondWindow);
            bytes[4 * code] = static_cast<uint8_t>(first);
            bytes[4 * code + 1] = static_cast<uint8_t>(first + 1);
            bytes[4 * code + 2] = bytes[4 * code + 3] = 0x80;
            shifts[code] = code * bits % 8;
        }
    }
};

template <int bits>
constexpr Straddling<bits> kStraddling{};

/// What a thread will need some tiles from now. Hardware foresees one stream of memory well, but here are three, and a
/// tile takes less time than memory does to answer.
template <class Isa>
class Foresight {
  public:
    Foresight(const QuantizedMatrix& matrix, int64_t first_row, int64_t begin_column) {
        int64_t scale_bytes = matrix.scale_type == FloatType::float32 ? 4 : 2;
        int64_t row_bytes = matrix.row_bytes();
        int64_t row = first_row + Isa::kOutputTile * (1 + kBytesAhead / (Isa::kOutputTile * row_bytes + 1));
        // The rows of a tile lie one behind the other, so its bytes are fetched in their order, some with each unit.
        code_step_ = Isa::kOutputTile * row_bytes * kUnitColumns / matrix.columns;
        scale_step_ = Isa::kOutputTile * scale_bytes * kUnitColumns / matrix.group_size;
        int64_t unit = begin_column / kUnitColumns;
        codes_ = reinterpret_cast<uintptr_t>(matrix.codes) + row * row_bytes + unit * code_step_;
        int64_t scales = row * matrix.groups() * scale_bytes + unit * scale_step_;
        scales_ = reinterpret_cast<uintptr_t>(matrix.scales) + scales;
        biases_ = reinterpret_cast<uintptr_t>(matrix.biases) + scales;
    }

    /// Fetches the bytes of one unit. An address behind the end is no error.
    template <int bits>
    POMONA_INLINE void fetch() {
        POMONA_UNROLL
        for (int line = 0; line < (Isa::kOutputTile * 4 * bits + 63) / 64; ++line) {
            __builtin_prefetch(reinterpret_cast<const void*>(codes_ + 64 * line));
        }
        __builtin_prefetch(reinterpret_cast<const void*>(scales_));
        __builtin_prefetch(reinterpret_cast<const void*>(biases_));
        codes_ += code_step_;
        scales_ += scale_step_;
        biases_ += scale_step_;
    }

  private:
    static constexpr int64_t kBytesAhead = 4096;

    // Numbers, because they may lie behind what they belong to.
    uintptr_t codes_;
    uintptr_t scales_;
    uintptr_t biases_;
    int64_t code_step_;
    int64_t scale_step_;
};

/// A few rows of the matrix within one chunk, with scales and biases in float32.
template <class Isa>
class Strip {
  public:
    /// Rows past `end` repeat the one before it, so that a tile at the edge reads nothing outside.
    Strip(const QuantizedMatrix& matrix, int64_t first_row, int64_t end, int64_t begin_column, int64_t columns)
        : units(columns / kUnitColumns),
          group_shift(__builtin_ctz(matrix.group_size / kUnitColumns)),
          foresight(matrix, first_row, begin_column) {
        for (int n = 0; n < Isa::kOutputTile; ++n) {
            int64_t row = vector::smaller(first_row + n, end - 1);
            codes[n] = matrix.codes + row * matrix.row_bytes() + begin_column * matrix.bits / 8;
            int64_t first_group = row * matrix.groups() + begin_column / matrix.group_size;
            int64_t groups = columns / matrix.group_size;
            scales[n] = as_float(matrix.scales, matrix.scale_type, first_group, groups, widened_[0][n]);
            biases[n] = as_float(matrix.biases, matrix.scale_type, first_group, groups, widened_[1][n]);
        }
    }

    const uint8_t* codes[Isa::kOutputTile];
    const float* scales[Isa::kOutputTile];
    const float* biases[Isa::kOutputTile];
    int64_t units;
    int group_shift;  ///< unit >> group_shift = group
    Foresight<Isa> foresight;

  private:
    static const float* as_float(const void* halves, FloatType type, int64_t first, int64_t count, float* widened) {
        if (type == FloatType::float32) {
            return static_cast<const float*>(halves) + first;
        }
        Isa::widen(static_cast<const uint16_t*>(halves) + first, count, type == FloatType::float16, widened);
        return widened;
    }

    float widened_[2][Isa::kOutputTile][kChunkGroups];
};

}  // namespace pomona::tile
