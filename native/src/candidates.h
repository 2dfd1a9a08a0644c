#pragma once

#include <cstdint>
#include <vector>

#include "instruction_set.h"

/// What a draw from one row of logits works with: its more probable tokens, and what leaves some of them out.
namespace pomona {

/// A token and its logit, as one number: the greater one stands before the lesser one.
using Rank = uint64_t;

/// @param logit no number in it is -0.
Rank rank_of(float logit, uint32_t id);

/// @return the token of a rank.
uint32_t id_of(Rank rank);

/// @return how many blocks of logits, each with a peak and a sum of its own, a row of `count` has.
int64_t blocks_of(int64_t count);

/// @return the sum of `count` values, in an order of its own.
double sum_of(const float* values, int64_t count);

/// Memory for one row, of the thread that makes it: there is one at a time.
struct Workspace {
    explicit Workspace(int64_t width);

    float* peaks;
    float* sums;
    float* logits;  // of candidates
    float* weights;
    uint32_t* ids;
};

/// Those tokens of a row that a draw may need, in the order of their ids.
class Candidates {
  public:
    Candidates(const Workspace& space, const float* logits, int64_t width)
        : space_(space), row_(logits), width_(width) {}

    int64_t count() const { return count_; }
    float logit(int64_t i) const { return space_.logits[i]; }
    uint32_t id(int64_t i) const { return space_.ids[i]; }
    float weight(int64_t i) const { return space_.weights[i]; }
    Rank rank(int64_t i) const { return rank_of(logit(i), id(i)); }
    const float* logits() const { return space_.logits; }

    /// Takes all whose logit is at least `least`; the peaks of the row's blocks are in the workspace.
    void gather(float least);

    /// Finds their exponentials, that of `best` being 1.
    void weigh(float best) { instructions().weigh(space_.logits, count_, best, 1.0f, space_.weights); }

    double mass() const { return sum_of(space_.weights, count_); }

    /// Keeps those for which is_kept(i) holds.
    template <class Test>
    void keep(const Test& is_kept) {
        int64_t kept = 0;
        for (int64_t i = 0; i < count_; ++i) {
            bool stays = is_kept(i);
            space_.logits[kept] = space_.logits[i];
            space_.ids[kept] = space_.ids[i];
            space_.weights[kept] = space_.weights[i];
            kept += stays;
        }
        count_ = kept;
    }

  private:
    const Workspace& space_;
    const float* row_;
    int64_t width_;
    int64_t count_ = 0;
};

/// @return a logit that at least `count` of a row reach: so many blocks do, given their peaks.
float reached_by(const float* peaks, int64_t blocks, double count);

/// Keeps each before which less than `mass` stands, the weight of `best` being 1.
void keep_mass(Candidates& candidates, float best, double mass);

/// Keeps the `count` most probable, or all where there are no more.
void keep_most_probable(Candidates& candidates, int64_t count);

/// Removes all whose weight exceeds `threshold` but the least probable of these, and those that are exempt.
void remove_top_choices(Candidates& candidates, double threshold, const int32_t* exempt_ids, int64_t num_exempt);

}  // namespace pomona
