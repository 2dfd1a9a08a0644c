#pragma once

#include "vector.h"

/// Attention, written once for any vector (see vector.h).
///
/// The order of one query's sums: a score adds up over the lanes of the width and then as a tree; the exponentials of
/// the scores over lanes of keys and then as a tree; the values over the keys from first to last.
namespace pomona::vector {

/// Keys whose scores are computed together; what they take of keys and values stays in the first-level cache.
template <class Isa>
constexpr int64_t kKeyBlock = Isa::kLanes;

/// Vectors of a row of y that are added up together.
constexpr int kValueVectors = 4;

/// Some queries of one head.
struct HeadQueries {
    const float* queries;
    const float* keys;
    const float* values;
    int64_t count;
    int64_t first;       // the number of the first of them
    int64_t num_scores;  // of each: the keys, rounded up
    float* scores;

    POMONA_INLINE float* scores_of(int64_t query) const { return scores + query * num_scores; }
};

/// The scores of one query and as many keys as there are lanes.
/// @param keys at most so many; missing ones are repeated.
template <class Isa>
inline typename Isa::Vec score_block(
    const float* query, const float* keys, int64_t stride, int64_t num_keys, int64_t width) {
    const float* rows[Isa::kLanes];
    typename Isa::Vec sums[Isa::kLanes];
    POMONA_UNROLL
    for (int key = 0; key < Isa::kLanes; ++key) {
        rows[key] = keys + smaller(key, num_keys - 1) * stride;
        sums[key] = Isa::zero();
    }
    int64_t i = 0;
    for (; i + Isa::kLanes <= width; i += Isa::kLanes) {
        auto values = Isa::load(query + i);
        POMONA_UNROLL
        for (int key = 0; key < Isa::kLanes; ++key) {
            sums[key] = Isa::fma(values, Isa::load(rows[key] + i), sums[key]);
        }
    }
    if (i < width) {
        auto values = Isa::load_part(query + i, width - i);
        for (int key = 0; key < Isa::kLanes; ++key) {
            sums[key] = Isa::fma(values, Isa::load_part(rows[key] + i, width - i), sums[key]);
        }
    }
    return Isa::totals(sums);
}

template <class Isa>
void score(const Attention& attention, const HeadQueries& head) {
    auto scale = constant<Isa>(attention.scale);
    int64_t most = attention.visible(head.first + head.count - 1);
    for (int64_t key = 0; key < most; key += kKeyBlock<Isa>) {
        const float* keys = head.keys + key * attention.keys_layout.row;
        for (int64_t query = 0; query < head.count; ++query) {
            int64_t left = attention.visible(head.first + query) - key;
            if (left > 0) {
                const float* row = head.queries + query * attention.queries_layout.row;
                auto block = score_block<Isa>(row, keys, attention.keys_layout.row, left, attention.width);
                Isa::store(head.scores_of(query) + key, Isa::multiply(block, scale));
            }
        }
    }
}

/// Turns the scores of one query into their exponentials.
/// @return what these add up to.
template <class Isa>
float soften(float* scores, int64_t count) {
    float lowest = -__builtin_inff();
    auto most = Isa::broadcast(&lowest);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        // Those behind the last repeat its score.
        most = Isa::larger(most, Isa::load(scores + i));
        static_cast<void>(lanes);
    });
    float minus_largest = -Isa::largest(most);
    auto shift = Isa::broadcast(&minus_largest);
    auto sums = Isa::zero();
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto values = exponential<Isa>(Isa::add(Isa::load(scores + i), shift));
        Isa::store(scores + i, values);
        sums = Isa::add(sums, load_some<Isa>(scores + i, lanes));
    });
    return Isa::total(sums);
}

/// Adds keys' values, each times its weight, to some vectors of one row of y.
template <class Isa, int vectors>
inline void add_values(const float* weights, const float* values, int64_t stride, int64_t num_keys, float* y) {
    typename Isa::Vec sums[vectors];
    POMONA_UNROLL
    for (int i = 0; i < vectors; ++i) {
        sums[i] = Isa::load(y + i * Isa::kLanes);
    }
    for (int64_t key = 0; key < num_keys; ++key) {
        auto weight = Isa::broadcast(weights + key);
        POMONA_UNROLL
        for (int i = 0; i < vectors; ++i) {
            sums[i] = Isa::fma(weight, Isa::load(values + key * stride + i * Isa::kLanes), sums[i]);
        }
    }
    POMONA_UNROLL
    for (int i = 0; i < vectors; ++i) {
        Isa::store(y + i * Isa::kLanes, sums[i]);
    }
}

/// The same for a whole row.
template <class Isa>
inline void add_row_values(
    const float* weights, const float* values, int64_t stride, int64_t num_keys, int64_t width, float* y) {
    constexpr int64_t kWide = kValueVectors * Isa::kLanes;
    int64_t i = 0;
    for (; i + kWide <= width; i += kWide) {
        add_values<Isa, kValueVectors>(weights, values + i, stride, num_keys, y + i);
    }
    for (; i + Isa::kLanes <= width; i += Isa::kLanes) {
        add_values<Isa, 1>(weights, values + i, stride, num_keys, y + i);
    }
    if (i < width) {
        auto sum = Isa::load_part(y + i, width - i);
        for (int64_t key = 0; key < num_keys; ++key) {
            auto value = Isa::load_part(values + key * stride + i, width - i);
            sum = Isa::fma(Isa::broadcast(weights + key), value, sum);
        }
        Isa::store_part(y + i, sum, width - i);
    }
}

template <class Isa>
void attend(const Attention& attention, int64_t batch, int64_t head, int64_t begin, int64_t end, float* scores) {
    int64_t kv_head = head / (attention.heads / attention.kv_heads);
    const Layout& rows = attention.queries_layout;
    const Layout& keys = attention.keys_layout;
    const Layout& values = attention.values_layout;
    int64_t num_scores = (attention.num_keys + 15) / 16 * 16;
    HeadQueries block{attention.queries + batch * rows.batch + head * rows.head + begin * rows.row,
                      attention.keys + batch * keys.batch + kv_head * keys.head,
                      attention.values + batch * values.batch + kv_head * values.head,
                      end - begin,
                      begin,
                      num_scores,
                      scores};
    score<Isa>(attention, block);

    int64_t y_stride = attention.heads * attention.width;
    float* y = attention.y + ((batch * attention.num_queries + begin) * attention.heads + head) * attention.width;
    float factors[kQueryBlock];
    for (int64_t query = 0; query < block.count; ++query) {
        factors[query] = 1.0f / soften<Isa>(block.scores_of(query), attention.visible(begin + query));
        for (int64_t i = 0; i < attention.width; ++i) {
            y[query * y_stride + i] = 0;
        }
    }
    int64_t most = attention.visible(end - 1);
    for (int64_t key = 0; key < most; key += kKeyBlock<Isa>) {
        for (int64_t query = 0; query < block.count; ++query) {
            int64_t left = smaller(kKeyBlock<Isa>, attention.visible(begin + query) - key);
            add_row_values<Isa>(block.scores_of(query) + key,
                                block.values + key * values.row,
                                values.row,
                                left,
                                attention.width,
                                y + query * y_stride);
        }
    }
    for (int64_t query = 0; query < block.count; ++query) {
        for (int64_t i = 0; i < attention.width; ++i) {
            y[query * y_stride + i] *= factors[query];
        }
    }
}

}  // namespace pomona::vector
