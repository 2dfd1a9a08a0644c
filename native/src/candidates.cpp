#include "candidates.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "rows.h"

namespace pomona {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Candidates of top_p are told apart by steps below the best logit, so many for a unit.
constexpr float kStepsPerUnit = 8;
constexpr int kNumSteps = 1024;

constexpr int64_t kFewCandidates = 64;  // to sort these takes no longer than to divide them

constexpr Rank kLastRank = 0;

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

}  // namespace

Rank rank_of(float logit, uint32_t id) {
    uint32_t bits;
    std::memcpy(&bits, &logit, sizeof(bits));
    bits ^= (bits >> 31) ? 0xFFFFFFFFu : 0x80000000u;
    return static_cast<Rank>(bits) << 32 | (0xFFFFFFFFu - id);
}

uint32_t id_of(Rank rank) {
    return 0xFFFFFFFFu - static_cast<uint32_t>(rank);
}

int64_t blocks_of(int64_t count) {
    return (count + kDrawBlock - 1) / kDrawBlock;
}

// Four sums that do not wait for one another.
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

Workspace::Workspace(int64_t width) {
    int64_t blocks = blocks_of(width);
    int64_t places = width + 1;  // one more is written than are kept
    peaks = scratch(2 * blocks + 3 * places);
    sums = peaks + blocks;
    logits = sums + blocks;
    weights = logits + places;
    ids = reinterpret_cast<uint32_t*>(weights + places);
}

void Candidates::gather(float least) {
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

float reached_by(const float* peaks, int64_t blocks, double count) {
    if (count > static_cast<double>(blocks)) {
        return -kInfinity;
    }
    std::vector<float> sorted(peaks, peaks + blocks);
    auto place = sorted.begin() + static_cast<int64_t>(count) - 1;
    std::nth_element(sorted.begin(), place, sorted.end(), std::greater<>());
    return *place;
}

// Only those of one step below the best need an order.
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

}  // namespace pomona
