#pragma once

#include "attention.h"

/// Attention of an encoder, in which every query sees every key; written once for any vector (see vector.h).
///
/// The keys stand in panels, so that lanes are keys and no sum goes over lanes: for heads as narrow as an encoder's
/// that is half of the work. The order of one query's sums: a score adds up over the width from first to last; the
/// exponentials over lanes of keys and then as a tree; the values over the keys from first to last.
namespace pomona::vector {

/// Queries that are computed together: where there are 32 registers, six, with as many sums as fit.
template <class Isa>
constexpr int kFullTile = Isa::kLanes == 16 ? 6 : Isa::kRowTile;

/// The scores of some queries and of some vectors of a panel's keys.
template <class Isa, int rows>
inline void score_panel(const Query* queries, const float* panel, int64_t key, int64_t width, typename Isa::Vec scale) {
    typename Isa::Vec sums[rows][kValueVectors];
    POMONA_UNROLL
    for (int n = 0; n < rows; ++n) {
        POMONA_UNROLL
        for (int i = 0; i < kValueVectors; ++i) {
            sums[n][i] = Isa::zero();
        }
    }
    for (int64_t place = 0; place < width; ++place) {
        typename Isa::Vec keys[kValueVectors];
        POMONA_UNROLL
        for (int i = 0; i < kValueVectors; ++i) {
            keys[i] = Isa::load(panel + i * Isa::kLanes);
        }
        POMONA_UNROLL
        for (int n = 0; n < rows; ++n) {
            auto value = Isa::broadcast(queries[n].row + place);
            POMONA_UNROLL
            for (int i = 0; i < kValueVectors; ++i) {
                sums[n][i] = Isa::fma(value, keys[i], sums[n][i]);
            }
        }
        panel += kPanelKeys;
    }
    POMONA_UNROLL
    for (int n = 0; n < rows; ++n) {
        POMONA_UNROLL
        for (int i = 0; i < kValueVectors; ++i) {
            Isa::store(queries[n].score_of(key + i * Isa::kLanes), Isa::multiply(sums[n][i], scale));
        }
    }
}

/// Calls act.operator()<rows>(first query) for tiles of all queries.
template <class Isa, class Act>
inline void for_query_tiles(const Query* queries, int64_t count, Act act) {
    for (int64_t i = 0; i < count; i += kFullTile<Isa>) {
        with_count<kFullTile<Isa>>(count - i, [&]<int rows>() { act.template operator()<rows>(queries + i); });
    }
}

template <class Isa>
void attend_fully(const FullAttention& attention, int64_t begin, int64_t end, float* scores) {
    static_assert(kPanelKeys % (kValueVectors * Isa::kLanes) == 0, "a panel is some whole steps");
    int64_t width = attention.width;
    Query queries[kFullQueries];
    int64_t count = end - begin;
    for (int64_t i = 0; i < count; ++i) {
        queries[i] = {attention.queries + (begin + i) * attention.query_row,
                      attention.y + (begin + i) * attention.y_row,
                      scores + i * attention.num_scores(),
                      0,
                      attention.num_keys};
    }
    auto scale = constant<Isa>(attention.scale);
    for (int64_t first = 0; first < attention.num_keys; first += kPanelKeys) {
        const float* panel = attention.panels + first * width;
        for_query_tiles<Isa>(queries, count, [&]<int rows>(const Query* tile) {
            for (int64_t key = 0; key < kPanelKeys; key += kValueVectors * Isa::kLanes) {
                score_panel<Isa, rows>(tile, panel + key, first + key, width, scale);
            }
        });
    }
    float factors[kFullQueries];
    for (int64_t i = 0; i < count; ++i) {
        factors[i] = 1.0f / soften<Isa>(queries[i].scores, attention.num_keys);
        for (int64_t j = 0; j < width; ++j) {
            queries[i].y[j] = 0;
        }
    }
    for (int64_t first = 0; first < attention.num_keys; first += kPanelKeys) {
        const float* values = attention.values + first * attention.value_row;
        int64_t num_keys = smaller(kPanelKeys, attention.num_keys - first);
        for_query_tiles<Isa>(queries, count, [&]<int rows>(const Query* tile) {
            add_rows<Isa, rows>(tile, Keys{values, attention.value_row, first, 0}, num_keys, width);
        });
    }
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < width; ++j) {
            queries[i].y[j] *= factors[i];
        }
    }
}

}  // namespace pomona::vector
