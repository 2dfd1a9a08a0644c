#pragma once

#include "vector.h"

/// Attention, written once for any vector (see vector.h). `Isa` offers besides `kRowTile`: queries that are computed
/// together, each with four sums.
///
/// The order of one query's sums: a score adds up over the lanes of the width and then as a tree; the exponentials of
/// the scores over lanes of keys, from the first that the query sees, and then as a tree; the values over the keys from
/// first to last.
namespace pomona::vector {

/// Keys whose scores are computed together; what they take of keys and values stays in the first-level cache.
template <class Isa>
constexpr int64_t kKeyBlock = Isa::kLanes;
static_assert(kBlockKeys % 16 == 0, "no vector of keys may reach from one block into the next");

/// How far ahead of the keys in use memory is asked for the next ones: they may lie where no hardware foresees.
constexpr int64_t kKeysAhead = kBlockKeys;

/// Vectors of a row of y that are added up together.
constexpr int kValueVectors = 4;

/// One query: where it lies and what it sees.
struct Query {
    const float* row;
    float* y;
    float* scores;  // of the keys that it sees; as many floats before it as there are lanes are free
    int64_t begin;
    int64_t end;

    POMONA_INLINE float* score_of(int64_t key) const { return scores + (key - begin); }
};

/// Some queries that read the same head of keys and values.
struct Queries {
    Query all[kQueryBlock];
    int64_t count;
    int64_t kv_head;
    int64_t begin;  // of what they see together
    int64_t end;
};

template <class Isa>
inline Queries queries_of(const Attention& attention, const QueryBlock& block, float* scores) {
    Queries queries;
    queries.count = 0;
    queries.kv_head = block.head / (attention.heads / attention.kv_heads);
    queries.begin = attention.begin(block.begin) / kKeyBlock<Isa> * kKeyBlock<Isa>;
    queries.end = attention.end(block.end - 1);
    int64_t num_scores = attention.num_scores(block.end - 1);
    for (int64_t head = block.head; head < block.head + block.heads; ++head) {
        for (int64_t query = block.begin; query < block.end; ++query) {
            const Layout& layout = attention.queries_layout;
            queries.all[queries.count] = {attention.queries + head * layout.head + query * layout.row,
                                          attention.y + (query * attention.heads + head) * attention.width,
                                          scores + queries.count * num_scores + Isa::kLanes,
                                          attention.begin(query),
                                          attention.end(query)};
            ++queries.count;
        }
    }
    return queries;
}

/// Some keys of a head, or their values, one behind the other.
struct Keys {
    const float* rows;
    int64_t stride;
    int64_t first;
    int64_t ahead;  // floats from these to those that memory is asked for meanwhile
};

/// Asks memory for what is used soon, line by line.
template <class Isa>
POMONA_INLINE void foresee(const float* vector, int64_t place) {
    constexpr int64_t kLineFloats = 16;
    if (place % kLineFloats == 0) {
        __builtin_prefetch(vector);
    }
}

/// Calls act(keys) for all that the queries see, some at a time.
template <class Isa, class Act>
inline void for_keys(const KeyBlocks& blocks, const Queries& queries, Act act) {
    for (int64_t key = queries.begin; key < queries.end; key += kKeyBlock<Isa>) {
        const float* rows = blocks.at(queries.kv_head, key);
        int64_t next = key + kKeysAhead < queries.end ? key + kKeysAhead : key;
        act(Keys{rows, blocks.layout.row, key, blocks.at(queries.kv_head, next) - rows});
    }
}

/// Calls act.operator()<count>() for the count at hand, at most `most`.
template <int most, class Act>
inline void with_count(int64_t count, Act act) {
    if constexpr (most > 1) {
        if (count < most) {
            return with_count<most - 1>(count, act);
        }
    }
    act.template operator()<most>();
}

/// Calls whole.operator()<count>(queries, keys) for tiles of queries that see all of some keys, and part(query, keys)
/// for each that sees fewer of them, or none. Memory is asked for the next keys once.
template <class Isa, class Whole, class Part>
inline void for_tiles(const Queries& queries, Keys keys, Whole whole, Part part) {
    constexpr int kTogether = Isa::kRowTile;
    auto sees_all = [&](const Query& query) {
        return query.begin <= keys.first && keys.first + kKeyBlock<Isa> <= query.end;
    };
    for (int64_t i = 0; i < queries.count; keys.ahead = 0) {
        const Query* tile = queries.all + i;
        int64_t count = 0;
        while (count < smaller(kTogether, queries.count - i) && sees_all(tile[count])) {
            ++count;
        }
        if (count > 0) {
            with_count<kTogether>(count, [&]<int number>() { whole.template operator()<number>(tile, keys); });
            i += count;
        } else {
            part(*tile, keys);
            ++i;
        }
    }
}

/// What the scores of some queries and some keys add up from.
/// @param first the number of the first key among those of `keys`.
template <class Isa, int count, int num_keys>
inline void multiply_keys(const Query* queries,
                          const Keys& keys,
                          int first,
                          int64_t width,
                          typename Isa::Vec (&products)[count][Isa::kLanes]) {
    typename Isa::Vec sums[count][num_keys];
    POMONA_UNROLL
    for (int n = 0; n < count; ++n) {
        POMONA_UNROLL
        for (int key = 0; key < num_keys; ++key) {
            sums[n][key] = Isa::zero();
        }
    }
    const float* rows = keys.rows + first * keys.stride;
    int64_t i = 0;
    for (; i + Isa::kLanes <= width; i += Isa::kLanes) {
        POMONA_UNROLL
        for (int key = 0; key < num_keys; ++key) {
            const float* row = rows + key * keys.stride;
            foresee<Isa>(row + keys.ahead, i);
            auto values = Isa::load(row);
            POMONA_UNROLL
            for (int n = 0; n < count; ++n) {
                sums[n][key] = Isa::fma(Isa::load(queries[n].row + i), values, sums[n][key]);
            }
        }
        rows += Isa::kLanes;
    }
    POMONA_UNROLL
    for (int n = 0; n < count; ++n) {
        POMONA_UNROLL
        for (int key = 0; key < num_keys; ++key) {
            if (i < width) {
                auto values = Isa::load_part(rows + key * keys.stride, width - i);
                sums[n][key] = Isa::fma(Isa::load_part(queries[n].row + i, width - i), values, sums[n][key]);
            }
            products[n][first + key] = sums[n][key];
        }
    }
}

/// The scores of some queries and as many keys as there are lanes.
template <class Isa, int count>
inline void score_tile(const Query* queries, const Keys& keys, int64_t width, typename Isa::Vec scale) {
    constexpr int kKeys = count == 1 && Isa::kLanes > 4 ? 8 : 4;  // sums enough to keep the units for them busy
    typename Isa::Vec products[count][Isa::kLanes];
    POMONA_UNROLL
    for (int key = 0; key < Isa::kLanes; key += kKeys) {
        multiply_keys<Isa, count, kKeys>(queries, keys, key, width, products);
    }
    POMONA_UNROLL
    for (int n = 0; n < count; ++n) {
        Isa::store(queries[n].score_of(keys.first), Isa::multiply(Isa::totals(products[n]), scale));
    }
}

/// The scores of one query and fewer keys; for the rest, that of the last is repeated.
template <class Isa>
inline void score_part(const Query& query, const Keys& keys, int64_t width, typename Isa::Vec scale) {
    int64_t num_keys = smaller(kKeyBlock<Isa>, query.end - keys.first);
    typename Isa::Vec products[Isa::kLanes];
    for (int64_t key = 0; key < Isa::kLanes; ++key) {
        auto sums = Isa::zero();
        const float* row = keys.rows + smaller(key, num_keys - 1) * keys.stride;
        for_vectors<Isa>(width, [&](int64_t i, int64_t lanes) {
            sums = Isa::fma(load_some<Isa>(query.row + i, lanes), load_some<Isa>(row + i, lanes), sums);
        });
        products[key] = sums;
    }
    Isa::store(query.score_of(keys.first), Isa::multiply(Isa::totals(products), scale));
}

template <class Isa>
void score(const Attention& attention, const Queries& queries) {
    auto scale = constant<Isa>(attention.scale);
    int64_t width = attention.width;
    for_keys<Isa>(attention.keys, queries, [&](const Keys& keys) {
        for_tiles<Isa>(
            queries,
            keys,
            [&]<int count>(const Query* tile, const Keys& all) { score_tile<Isa, count>(tile, all, width, scale); },
            [&](const Query& query, const Keys& all) {
                if (query.begin < all.first + kKeyBlock<Isa> && all.first < query.end) {
                    score_part<Isa>(query, all, width, scale);
                }
            });
    });
}

/// Turns the scores of one query into their exponentials.
/// @return what these add up to.
template <class Isa>
float soften(float* scores, int64_t count) {
    for (int64_t i = count; i % Isa::kLanes != 0; ++i) {
        scores[i] = scores[count - 1];
    }
    float lowest = -__builtin_inff();
    auto most = Isa::broadcast(&lowest);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
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

/// Adds keys' values, each times its weight, to some vectors of the rows of some queries' y.
/// @param place where in their rows the vectors begin.
template <class Isa, int count, int vectors>
inline void add_values(const Query* queries, const Keys& values, int64_t num_keys, int64_t place) {
    typename Isa::Vec sums[count][vectors];
    POMONA_UNROLL
    for (int n = 0; n < count; ++n) {
        POMONA_UNROLL
        for (int i = 0; i < vectors; ++i) {
            sums[n][i] = Isa::load(queries[n].y + place + i * Isa::kLanes);
        }
    }
    const float* row = values.rows + place;
    for (int64_t key = 0; key < num_keys; ++key) {
        typename Isa::Vec weights[count];
        POMONA_UNROLL
        for (int n = 0; n < count; ++n) {
            weights[n] = Isa::broadcast(queries[n].score_of(values.first) + key);
        }
        POMONA_UNROLL
        for (int i = 0; i < vectors; ++i) {
            foresee<Isa>(row + values.ahead + i * Isa::kLanes, i * Isa::kLanes);
            auto value = Isa::load(row + i * Isa::kLanes);
            POMONA_UNROLL
            for (int n = 0; n < count; ++n) {
                sums[n][i] = Isa::fma(weights[n], value, sums[n][i]);
            }
        }
        row += values.stride;
    }
    POMONA_UNROLL
    for (int n = 0; n < count; ++n) {
        POMONA_UNROLL
        for (int i = 0; i < vectors; ++i) {
            Isa::store(queries[n].y + place + i * Isa::kLanes, sums[n][i]);
        }
    }
}

/// The same for whole rows.
template <class Isa, int count>
inline void add_rows(const Query* queries, const Keys& values, int64_t num_keys, int64_t width) {
    constexpr int64_t kWide = kValueVectors * Isa::kLanes;
    int64_t i = 0;
    for (; i + kWide <= width; i += kWide) {
        add_values<Isa, count, kValueVectors>(queries, values, num_keys, i);
    }
    for (; i + Isa::kLanes <= width; i += Isa::kLanes) {
        add_values<Isa, count, 1>(queries, values, num_keys, i);
    }
    for (int n = 0; n < count && i < width; ++n) {
        auto sum = Isa::load_part(queries[n].y + i, width - i);
        for (int64_t key = 0; key < num_keys; ++key) {
            auto value = Isa::load_part(values.rows + key * values.stride + i, width - i);
            sum = Isa::fma(Isa::broadcast(queries[n].score_of(values.first) + key), value, sum);
        }
        Isa::store_part(queries[n].y + i, sum, width - i);
    }
}

/// Adds to one query's y what it sees of some keys.
template <class Isa>
inline void add_part(const Query& query, const Keys& values, int64_t width) {
    int64_t first = query.begin > values.first ? query.begin : values.first;
    int64_t last = smaller(values.first + kKeyBlock<Isa>, query.end);
    if (first < last) {
        Keys seen{values.rows + (first - values.first) * values.stride, values.stride, first, values.ahead};
        add_rows<Isa, 1>(&query, seen, last - first, width);
    }
}

template <class Isa>
void add(const Attention& attention, const Queries& queries) {
    int64_t width = attention.width;
    for_keys<Isa>(attention.values, queries, [&](const Keys& values) {
        for_tiles<Isa>(
            queries,
            values,
            [&]<int count>(const Query* tile, const Keys& all) {
                add_rows<Isa, count>(tile, all, kKeyBlock<Isa>, width);
            },
            [&](const Query& query, const Keys& all) { add_part<Isa>(query, all, width); });
    });
}

template <class Isa>
void attend(const Attention& attention, const QueryBlock& block, float* scores) {
    Queries queries = queries_of<Isa>(attention, block, scores);
    score<Isa>(attention, queries);

    int64_t width = attention.width;
    float factors[kQueryBlock];
    for (int64_t i = 0; i < queries.count; ++i) {
        const Query& query = queries.all[i];
        factors[i] = 1.0f / soften<Isa>(query.scores, query.end - query.begin);
        for (int64_t j = 0; j < width; ++j) {
            query.y[j] = 0;
        }
    }
    add<Isa>(attention, queries);
    for (int64_t i = 0; i < queries.count; ++i) {
        for (int64_t j = 0; j < width; ++j) {
            queries.all[i].y[j] *= factors[i];
        }
    }
}

}  // namespace pomona::vector
