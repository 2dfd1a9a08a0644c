#include "choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "candidates.h"
#include "instruction_set.h"

namespace pomona {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How far below the best logit the candidates of top_p are looked for, one after the other: mostly few are enough.
constexpr float kDepths[] = {-3, -5, -7, -9, -12, -16};

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

constexpr int64_t kWordBits = 32;

void restrict_row(const float* logits, int64_t width, const uint32_t* mask, int64_t num_words, float* y) {
    for (int64_t first = 0; first < width; first += kWordBits) {
        int64_t count = std::min(kWordBits, width - first);
        uint32_t word = first / kWordBits < num_words ? mask[first / kWordBits] : 0;
        if (word == 0) {
            std::fill_n(y + first, count, -kInfinity);
            continue;
        }
        for (int64_t i = 0; i < count; ++i) {
            y[first + i] = (word >> i & 1) != 0 ? logits[first + i] : -kInfinity;
        }
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

void restrict_rows(const Rows& logits, int64_t width, const uint32_t* masks, int64_t num_words, float* y) {
    share_rows(logits.count(), width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            restrict_row(logits.at(row), width, masks + row * num_words, num_words, y + row * width);
        }
    });
}

}  // namespace pomona
