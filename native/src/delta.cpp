#include "delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "instruction_set.h"
#include "rows.h"

namespace pomona {

namespace {

// Added to the squared length of queries and keys before its root.
constexpr float kLengthEpsilon = 1e-6f;

// Value rows of a memory that one thread takes: with keys as wide as they come they stay in the first-level cache.
constexpr int64_t kSlabRows = 32;

/// A token in the rows that it is one of.
struct Place {
    const DeltaRow* row;
    int64_t token;  ///< among the row's
};

std::vector<Place> places_of(const std::vector<DeltaRow>& rows) {
    std::vector<Place> places;
    for (const DeltaRow& row : rows) {
        for (int64_t token = 0; token < row.num_tokens(); ++token) {
            places.push_back({&row, token});
        }
    }
    return places;
}

/// What is known of each token before any memory is looked at.
class Prepared {
  public:
    Prepared(const DeltaSizes& sizes, const DeltaOperands& operands, const std::vector<DeltaRow>& rows)
        : sizes_(sizes), operands_(operands), isa_(instructions()) {
        std::vector<Place> places = places_of(rows);
        mixed_.resize(places.size() * sizes.channels());
        products_.resize(places.size() * sizes.key_heads);
        factors_.resize(places.size() * sizes.value_heads);
        weights_.resize(places.size() * sizes.value_heads);
        share_rows(static_cast<int64_t>(places.size()), 8 * sizes.channels(), [&](int64_t begin, int64_t end) {
            std::vector<const float*> seen(sizes.taps);
            for (int64_t i = begin; i < end; ++i) {
                mix(places[i], seen);
                aim(places[i].row->first + places[i].token);
                weigh(places[i].row->first + places[i].token);
            }
        });
    }

    /// Where the row `token` is, which may be one that the convolution sees again: those are numbered below 0.
    const float* channels_of(const DeltaRow& row, int64_t token) const {
        if (token < 0) {
            return row.seen + (token + sizes_.taps - 1) * sizes_.channels();
        }
        return operands_.mixed + (row.first + token) * sizes_.channels();
    }

    /// The tokens of a row from `begin` on in one head, for value rows from `first` on.
    MemoryWalk walk(const DeltaRow& row, int64_t begin, int64_t head, int64_t first) const {
        int64_t token = row.first + begin;
        int64_t key_head = head / (sizes_.value_heads / sizes_.key_heads);
        const float* channels = mixed_.data() + token * sizes_.channels();
        MemoryWalk walk{};
        walk.queries = channels + key_head * sizes_.key_dim;
        walk.keys = walk.queries + sizes_.key_width();
        walk.values = channels + 2 * sizes_.key_width() + head * sizes_.value_dim + first;
        walk.token_step = sizes_.channels();
        walk.factors = factors_.data() + token * sizes_.value_heads + head;
        walk.weights = weights_.data() + token * sizes_.value_heads + head;
        walk.gate_step = sizes_.value_heads;
        walk.products = products_.data() + token * sizes_.key_heads + key_head;
        walk.product_step = sizes_.key_heads;
        walk.key_dim = sizes_.key_dim;
        walk.y_step = sizes_.value_width();
        return walk;
    }

  private:
    /// Convolves a token's channels with those before them.
    void mix(const Place& place, std::vector<const float*>& seen) {
        for (int64_t tap = 0; tap < sizes_.taps; ++tap) {
            seen[tap] = channels_of(*place.row, place.token - (sizes_.taps - 1) + tap);
        }
        int64_t token = place.row->first + place.token;
        float* y = mixed_.data() + token * sizes_.channels();
        isa_.convolve(seen.data(), operands_.convolution, sizes_.taps, sizes_.channels(), y);
    }

    /// Gives a token's keys the length 1, and its queries one that makes up for their width.
    void aim(int64_t token) {
        float root = std::sqrt(static_cast<float>(sizes_.key_dim));
        for (int64_t head = 0; head < sizes_.key_heads; ++head) {
            float* query = mixed_.data() + token * sizes_.channels() + head * sizes_.key_dim;
            float* key = query + sizes_.key_width();
            scale(query, root);
            scale(key, 1.0f);
            products_[token * sizes_.key_heads + head] = isa_.dot(key, query, sizes_.key_dim);
        }
    }

    /// Divides a vector by its length and by `divisor`.
    void scale(float* x, float divisor) {
        float factor = 1.0f / (std::sqrt(isa_.dot(x, x, sizes_.key_dim) + kLengthEpsilon) * divisor);
        for (int64_t i = 0; i < sizes_.key_dim; ++i) {
            x[i] *= factor;
        }
    }

    /// Finds how much each head forgets at a token, and how much of what it lacks it takes in.
    void weigh(int64_t token) {
        for (int64_t head = 0; head < sizes_.value_heads; ++head) {
            int64_t place = token * sizes_.value_heads + head;
            float x = operands_.decays[place] + operands_.biases[head];
            float softplus = std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
            factors_[place] = std::exp(-operands_.rates[head] * softplus);
            weights_[place] = 1.0f / (1.0f + std::exp(-operands_.corrections[place]));
        }
    }

    const DeltaSizes& sizes_;
    const DeltaOperands& operands_;
    const Instructions& isa_;
    std::vector<float> mixed_;     // [tokens, channels]
    std::vector<float> products_;  // [tokens, key heads]: of key and query
    std::vector<float> factors_;   // [tokens, value heads]
    std::vector<float> weights_;   // [tokens, value heads]
};

/// Goes through a row's tokens with some value rows of one head's memory.
void walk_slab(
    const DeltaSizes& sizes, const Prepared& prepared, const DeltaRow& row, int64_t head, int64_t first, float* y) {
    const Instructions& isa = instructions();
    int64_t num_rows = std::min(kSlabRows, sizes.value_dim - first);
    int64_t place = (head * sizes.value_dim + first) * sizes.key_dim;
    const float* before = row.memory + place;
    int64_t done = 0;
    for (const DeltaPiece& piece : row.pieces) {
        MemoryWalk walk = prepared.walk(row, done, head, first);
        walk.y = y + (row.first + done) * sizes.value_width() + head * sizes.value_dim + first;
        walk.memory = piece.memory + place;
        walk.num_rows = num_rows;
        walk.num_tokens = piece.num_tokens;
        std::memcpy(walk.memory, before, num_rows * sizes.key_dim * sizeof(float));
        isa.remember(walk);
        before = walk.memory;
        done += piece.num_tokens;
    }
}

/// Keeps what the convolution sees again behind each piece.
void keep_seen(const DeltaSizes& sizes, const Prepared& prepared, const DeltaRow& row) {
    int64_t done = 0;
    for (const DeltaPiece& piece : row.pieces) {
        done += piece.num_tokens;
        for (int64_t i = 0; i + 1 < sizes.taps; ++i) {
            const float* channels = prepared.channels_of(row, done - (sizes.taps - 1) + i);
            std::memcpy(piece.seen + i * sizes.channels(), channels, sizes.channels() * sizeof(float));
        }
    }
}

}  // namespace

void run_delta(const DeltaSizes& sizes, const DeltaOperands& operands, const std::vector<DeltaRow>& rows, float* y) {
    Prepared prepared(sizes, operands, rows);
    int64_t slabs = (sizes.value_dim + kSlabRows - 1) / kSlabRows;
    int64_t jobs = sizes.value_heads * slabs;
    int64_t num_tokens = 0;
    for (const DeltaRow& row : rows) {
        keep_seen(sizes, prepared, row);
        num_tokens += row.num_tokens();
    }
    int64_t num_jobs = jobs * static_cast<int64_t>(rows.size());
    if (num_jobs == 0) {
        return;
    }
    int64_t work = 2 * sizes.memory_size() * num_tokens / num_jobs;
    share_rows(num_jobs, work, [&](int64_t begin, int64_t end) {
        for (int64_t job = begin; job < end; ++job) {
            int64_t slab = job % jobs;
            walk_slab(sizes, prepared, rows[job / jobs], slab / slabs, slab % slabs * kSlabRows, y);
        }
    });
}

}  // namespace pomona
