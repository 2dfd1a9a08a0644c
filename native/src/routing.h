#pragma once

#include <cstdint>

#include "rows.h"

/// What a mixture of experts does to rows around its products, on the threads of the shared pool.
namespace pomona {

/// What share of a row each of the chosen experts has.
enum class Sharing {
    of_all,     ///< its probability among all
    of_chosen,  ///< its probability among the chosen
};

/// Chooses for each row the `num_chosen` largest logits, the largest first; of equals the one with the lower number. A
/// logit that is no number counts as less than any that is.
///
/// @param logits rows of `num_experts` floats.
/// @param num_chosen 1 to `num_experts`.
/// @param scale multiplies the share of each expert, `num_experts` floats; null: nothing does.
/// @param numbers int32 [rows, num_chosen], written.
/// @param shares float32 of that shape, written.
void choose_experts(const Rows& logits,
                    int64_t num_experts,
                    int64_t num_chosen,
                    Sharing sharing,
                    const float* scale,
                    int32_t* numbers,
                    float* shares);

/// y = the sum of answers by their shares, from the first to the last.
///
/// @param answers `shares.count()` times `num_chosen` rows of `width` floats.
/// @param shares rows of `num_chosen` floats.
/// @param y float32 [rows of shares, width], written.
void mix(const Rows& answers, const Rows& shares, int64_t num_chosen, int64_t width, float* y);

/// y = x / (1 + exp(-gate)).
///
/// @param x rows of `width` floats.
/// @param gate as many rows of `gate_width` floats: `width`, or one that stands for all of its row.
/// @param y float32 [rows, width], written.
void gate_by_sigmoid(const Rows& x, const Rows& gate, int64_t gate_width, int64_t width, float* y);

}  // namespace pomona
