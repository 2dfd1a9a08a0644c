#include "choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "instruction_set.h"

namespace pomona {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How far below the best logit the candidates of top_p are looked for, one after the other: mostly few are enough.
constexpr float kDepths[] = {-3, -5, -7, -9, -12, -16};

// Candidates of top_p are told apart by steps below the best logit, so many for a unit.
constexpr float kStepsPerUnit = 8;
constexpr int kNumSteps = 1024;

constexpr int64_t kFewCandidates = 64;  // to sort these takes no longer than to divide them

/// A token and its logit, as one number: the greater one stands before the lesser one.
using Rank = uint64_t;

/// @param logit no number in it is -0.
Rank rank_of(float logit, uint32_t id) {
    uint32_t bits;
    std::memcpy(&bits, &logit, sizeof(bits));
    bits ^= (bits >> 31) ? 0xFFFFFFFFu : 0x80000000u;
    return static_cast<Rank>(bits) << 32 | (0xFFFFFFFFu - id);
}

constexpr Rank kLastRank = 0;

uint32_t id_of(Rank rank) {
    return 0xFFFFFFFFu - static_cast<uint32_t>(rank);
}

int64_t blocks_of(int64_t count) {
    return (count + kDrawBlock - 1) / kDrawBlock;
}

/// Four sums that do not wait for one another.
double sum_of(const float* values, int64_t count) {
    double sums[4] = {};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        for (int lane = 0; lane < 4; ++lane) {
            sums[lane] += values[i + lane];
        }
    }
    for (; i < count; ++i) {
        sums[0] += values[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Memory for one row.
struct Workspace {
    explicit Workspace(int64_t width) {
        int64_t blocks = blocks_of(width);
        int64_t places = width + 1;  // one more is written than are kept
        peaks = scratch(2 * blocks + 3 * places);
        sums = peaks + blocks;
        logits = sums + blocks;
        weights = logits + places;
        ids = reinterpret_cast<uint32_t*>(weights + places);
    }

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

    /// Takes all whose logit is at least `least`.
    void gather(float least) {
        count_ = 0;
        for (int64_t begin = 0; begin < width_; begin += kDrawBlock) {
            if (space_.peaks[begin / kDrawBlock] < least) {
                continue;
            }
            int64_t end = std::min(width_, begin + kDrawBlock);
            for (int64_t i = begin; i < end; ++i) {
                space_.logits[count_] = row_[i] + 0.0f;  // -0 becomes 0
                space_.ids[count_] = static_cast<uint32_t>(i);
                count_ += row_[i] >= least;
            }
        }
    }

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

/// A logit that at least `count` of a row reach: so many blocks do.
float reached_by(const float* peaks, int64_t blocks, double count) {
    if (count > static_cast<double>(blocks)) {
        return -kInfinity;
    }
    std::vector<float> sorted(peaks, peaks + blocks);
    auto place = sorted.begin() + static_cast<int64_t>(count) - 1;
    std::nth_element(sorted.begin(), place, sorted.end(), std::greater<>());
    return *place;
}

struct Weighted {
    Rank rank;
    float weight;

    bool operator<(const Weighted& other) const { return rank > other.rank; }
};

/// The last of those before which less than `mass` stands. It is found by halves, not by sorting all.
Rank last_within(std::vector<Weighted>& all, double mass) {
    auto begin = all.begin();
    auto end = all.end();
    double before = 0;
    while (end - begin > kFewCandidates) {
        auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end);
        double half = 0;
        for (auto each = begin; each != middle; ++each) {
            half += each->weight;
        }
        if (before + half >= mass) {
            end = middle;
        } else {
            before += half;
            begin = middle;
        }
    }
    std::sort(begin, end);
    auto last = begin;
    for (before += last->weight; last + 1 != end && before < mass; before += last->weight) {
        ++last;
    }
    return last->rank;
}

/// Keeps each before which less than `mass` stands: only those of one step below the best need an order.
void keep_mass(Candidates& candidates, float best, double mass) {
    auto step_of = [&](int64_t i) {
        float steps = (best - candidates.logit(i)) * kStepsPerUnit;
        return static_cast<int>(std::min(steps, kNumSteps - 1.0f));
    };
    double masses[kNumSteps] = {};
    for (int64_t i = 0; i < candidates.count(); ++i) {
        masses[step_of(i)] += candidates.weight(i);
    }
    double before = 0;
    int step = 0;
    while (step + 1 < kNumSteps && before + masses[step] < mass) {
        before += masses[step++];
    }
    std::vector<Weighted> some;
    for (int64_t i = 0; i < candidates.count(); ++i) {
        if (step_of(i) == step) {
            some.push_back({candidates.rank(i), candidates.weight(i)});
        }
    }
    Rank least = some.empty() ? kLastRank : last_within(some, mass - before);
    candidates.keep([&](int64_t i) { return candidates.rank(i) >= least; });
}

void keep_most_probable(Candidates& candidates, int64_t count) {
    if (candidates.count() <= count) {
        return;
    }
    std::vector<Rank> ranks(candidates.count());
    for (int64_t i = 0; i < candidates.count(); ++i) {
        ranks[i] = candidates.rank(i);
    }
    std::nth_element(ranks.begin(), ranks.begin() + count - 1, ranks.end(), std::greater<>());
    Rank least = ranks[count - 1];
    candidates.keep([&](int64_t i) { return candidates.rank(i) >= least; });
}

/// Removes all whose weight exceeds `threshold` but the least probable of these.
void remove_top_choices(Candidates& candidates, double threshold, const int32_t* exempt_ids, int64_t num_exempt) {
    float least = kInfinity;
    for (int64_t i = 0; i < candidates.count(); ++i) {
        if (candidates.weight(i) > threshold) {
            least = std::min(least, candidates.logit(i));
        }
    }
    const int32_t* end = exempt_ids + num_exempt;
    candidates.keep([&](int64_t i) {
        return candidates.logit(i) <= least ||
               std::find(exempt_ids, end, static_cast<int32_t>(candidates.id(i))) != end;
    });
}

/// The draw from one row.
class Draw {
  public:
    Draw(const float* logits, int64_t width, const Choice& choice)
        : logits_(logits), width_(width), choice_(choice), space_(width), isa_(instructions()) {}

    Chosen choose(const int32_t* exempt_ids, int64_t num_exempt) {
        best_ = isa_.peaks(logits_, width_, space_.peaks);
        if (!std::isfinite(best_)) {
            return {0, best_};
        }
        if (needs_mass()) {
            isa_.sum_weights(logits_, width_, best_, 1.0f, space_.sums);
            mass_ = sum_of(space_.sums, blocks_of(width_));
        }
        float normalizer = choice_.needs_normalizer != 0 ? best_ + static_cast<float>(std::log(mass_)) : best_;
        return {token(exempt_ids, num_exempt), normalizer};
    }

  private:
    bool has_top_p() const { return choice_.top_p > 0 && choice_.top_p < 1; }
    bool has_xtc() const { return choice_.xtc_threshold < 0.5f; }
    bool has_filters() const { return has_top_p() || has_xtc() || choice_.log_min_p > -kInfinity || choice_.top_k > 0; }
    bool needs_mass() const {
        return choice_.needs_normalizer != 0 || (choice_.sharpness != 0 && (has_top_p() || has_xtc()));
    }

    uint32_t token(const int32_t* exempt_ids, int64_t num_exempt) {
        if (choice_.sharpness == 0) {
            return first_best();
        }
        if (!has_filters()) {
            return static_cast<uint32_t>(place(logits_, width_, best_));
        }
        Candidates kept(space_, logits_, width_);
        filter(kept, exempt_ids, num_exempt);
        float largest = *std::max_element(kept.logits(), kept.logits() + kept.count());
        return kept.id(place(kept.logits(), kept.count(), largest));
    }

    uint32_t first_best() const {
        int64_t block = std::find(space_.peaks, space_.peaks + blocks_of(width_), best_) - space_.peaks;
        const float* begin = logits_ + block * kDrawBlock;
        return static_cast<uint32_t>(std::find(begin, logits_ + width_, best_) - logits_);
    }

    void filter(Candidates& kept, const int32_t* exempt_ids, int64_t num_exempt) {
        gather(kept);
        if (has_top_p()) {
            keep_mass(kept, best_, choice_.top_p * mass_);
        }
        if (choice_.log_min_p > -kInfinity) {
            kept.keep([&](int64_t i) { return kept.logit(i) - best_ >= choice_.log_min_p; });
        }
        if (has_xtc()) {
            remove_top_choices(kept, choice_.xtc_threshold * mass_, exempt_ids, num_exempt);
        }
        if (choice_.top_k > 0) {
            keep_most_probable(kept, static_cast<int64_t>(choice_.top_k));
        }
    }

    /// Takes all that the filters can keep, and few others.
    void gather(Candidates& kept) {
        float least = enough();
        if (has_top_p()) {
            for (float depth : kDepths) {
                if (best_ + depth <= least) {
                    break;
                }
                kept.gather(best_ + depth);
                kept.weigh(best_);
                if (kept.mass() >= choice_.top_p * mass_) {
                    return;
                }
            }
        }
        kept.gather(least);
        kept.weigh(best_);
    }

    /// A logit below which neither min_p nor top_k keeps any.
    float enough() const {
        float least = -kInfinity;
        if (choice_.top_k > 0) {
            // XTC removes less than so many, which all stand before those that top_k then keeps.
            double removed = has_xtc() ? std::ceil(1 / static_cast<double>(choice_.xtc_threshold)) : 0;
            least = reached_by(space_.peaks, blocks_of(width_), choice_.top_k + removed);
        }
        float rounding = 1e-6f * (1 + std::fabs(best_) - choice_.log_min_p);
        return std::max(least, best_ + choice_.log_min_p - rounding);
    }

    /// Where the draw falls among logits, of which the largest is given.
    int64_t place(const float* logits, int64_t count, float largest) {
        isa_.sum_weights(logits, count, largest, choice_.sharpness, space_.sums);
        int64_t blocks = blocks_of(count);
        double target = choice_.uniform * sum_of(space_.sums, blocks);
        double before = 0;
        int64_t block = 0;
        while (block + 1 < blocks && before + space_.sums[block] <= target) {
            before += space_.sums[block++];
        }
        float weights[kDrawBlock];
        int64_t begin = block * kDrawBlock;
        int64_t size = std::min(kDrawBlock, count - begin);
        isa_.weigh(logits + begin, size, largest, choice_.sharpness, weights);
        int64_t last = 0;
        for (int64_t i = 0; i < size; ++i) {
            if (weights[i] > 0) {
                last = i;
                before += weights[i];
                if (before > target) {
                    break;
                }
            }
        }
        return begin + last;
    }

    const float* logits_;
    int64_t width_;
    const Choice& choice_;
    Workspace space_;
    const Instructions& isa_;
    float best_ = 0;
    double mass_ = 0;  // the sum of all exponentials, that of the best logit being 1
};

void find_top_of_row(const float* logits, int64_t width, int64_t count, uint32_t* ids, float* values) {
    Workspace space(width);
    if (std::isnan(instructions().peaks(logits, width, space.peaks))) {  // such a row has no order
        std::fill(ids, ids + count, 0);
        std::fill(values, values + count, -kInfinity);
        return;
    }
    Candidates candidates(space, logits, width);
    candidates.gather(reached_by(space.peaks, blocks_of(width), static_cast<double>(count)));
    std::vector<Rank> ranks(candidates.count());
    for (int64_t i = 0; i < candidates.count(); ++i) {
        ranks[i] = candidates.rank(i);
    }
    std::partial_sort(ranks.begin(), ranks.begin() + count, ranks.end(), std::greater<>());
    for (int64_t i = 0; i < count; ++i) {
        ids[i] = id_of(ranks[i]);
        values[i] = logits[ids[i]];
    }
}

}  // namespace

void choose(const Rows& logits,
            int64_t width,
            const Choice* choices,
            const int32_t* exempt_ids,
            int64_t num_exempt,
            uint32_t* tokens,
            float* normalizers) {
    share_rows(logits.count(), 4 * width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            Chosen chosen = Draw(logits.at(row), width, choices[row]).choose(exempt_ids + row * num_exempt, num_exempt);
            tokens[row] = chosen.token;
            normalizers[row] = chosen.normalizer;
        }
    });
}

void find_top(const Rows& logits, int64_t width, int64_t count, uint32_t* ids, float* values) {
    share_rows(logits.count(), width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            find_top_of_row(logits.at(row), width, count, ids + row * count, values + row * count);
        }
    });
}

}  // namespace pomona
