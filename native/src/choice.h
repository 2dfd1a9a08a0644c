#pragma once

#include <cstdint>
#include <vector>

#include "rows.h"

/// Which token comes next. A row's depends on its own logits and choice alone: neither on other rows nor on threads.
namespace pomona {

/// How the token of one row is drawn, as numbers of one kind, because a matrix of them comes from Python.
///
/// The filters run in the order of their fields. The more probable token stands before the less probable
/// one, and of equals the one of the smaller id.
struct Choice {
    float sharpness;         ///< 1 / temperature; 0: the most probable token, before any filter
    float top_p;             ///< keeps those before which less mass stands; within 0 and 1, any other keeps all
    float log_min_p;         ///< keeps those no further below the best logit; minus infinity keeps all
    float xtc_threshold;     ///< of those more probable, removes all but the least probable; 0.5 or more removes none
    float top_k;             ///< keeps so many; 0 keeps all
    float uniform;           ///< within 0 and 1, 1 excluded: where the draw falls
    float needs_normalizer;  ///< 0: the caller only wants to know whether it is finite
};

/// A token, and the logarithm of the sum of the exponentials of all logits. That is not finite where a logit is no
/// number or infinite, or all are minus infinity.
struct Chosen {
    uint32_t token;    ///< 0 where `normalizer` is not finite
    float normalizer;  ///< the largest logit where it was not needed
};

/// Draws a token from each row: with a probability proportional to exp(logit / temperature) among those kept. It is the
/// first, in the order of ids, with which the sum of these weights exceeds `uniform` times their sum.
///
/// @param logits rows of `width` floats, side by side.
/// @param choices one for each row.
/// @param exempt_ids int32 [rows, num_exempt]: XTC never removes these; a negative number stands for none.
/// @param tokens one for each row, written.
/// @param normalizers one for each row, written.
void choose(const Rows& logits,
            int64_t width,
            const Choice* choices,
            const int32_t* exempt_ids,
            int64_t num_exempt,
            uint32_t* tokens,
            float* normalizers);

/// Finds the largest logits of each row, the largest first, and of equals the one of the smaller id.
///
/// @param logits rows of `width` floats, side by side.
/// @param count how many, at most `width`.
/// @param ids uint32 [rows, count], written.
/// @param values float32 [rows, count], written.
void find_top(const Rows& logits, int64_t width, int64_t count, uint32_t* ids, float* values);

/// Copies rows and makes minus infinity of what their masks forbid.
///
/// @param logits rows of `width` floats, side by side.
/// @param masks uint32 [rows, num_words]: bit i % 32 of word i / 32 allows element i; none behind them is allowed.
/// @param y float32 [rows, width], written.
void restrict_rows(const Rows& logits, int64_t width, const uint32_t* masks, int64_t num_words, float* y);

}  // namespace pomona
