#include "attention.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "instruction_set.h"
#include "rows.h"

namespace pomona {

namespace {

// Scores of a piece, so that they fit the second-level cache.
constexpr int64_t kMostScores = 1 << 18;

struct Piece {
    const Attention* sequence;
    QueryBlock block;
};

/// How many queries of one head are taken together.
int64_t queries_together(const Attention& sequence) {
    int64_t fitting = kMostScores / sequence.num_scores(sequence.num_queries - 1);
    return std::clamp<int64_t>(fitting, 1, std::min(kQueryBlock, sequence.num_queries));
}

/// Appends the pieces of a sequence.
/// @param parts how many pieces the heads that read the same keys make at least, if there are so many.
void split(const Attention& sequence, int64_t parts, std::vector<Piece>& pieces) {
    int64_t queries = queries_together(sequence);
    int64_t group = sequence.heads / sequence.kv_heads;
    int64_t fitting = std::min(kQueryBlock, kMostScores / sequence.num_scores(sequence.num_queries - 1)) / queries;
    int64_t heads = std::clamp<int64_t>(fitting, 1, (group + parts - 1) / parts);
    for (int64_t first = 0; first < sequence.heads; first += group) {
        for (int64_t head = first; head < first + group; head += heads) {
            int64_t together = std::min(heads, first + group - head);
            // The last queries see the most keys: they come first.
            for (int64_t end = sequence.num_queries; end > 0; end -= queries) {
                pieces.push_back({&sequence, {head, together, std::max<int64_t>(0, end - queries), end}});
            }
        }
    }
}

/// The pieces of all. To read keys once for all their heads saves more than an even share of the work, but every thread
/// should have a piece.
std::vector<Piece> pieces_of(const std::vector<Attention>& sequences) {
    std::vector<Piece> pieces;
    for (const Attention& sequence : sequences) {
        split(sequence, 1, pieces);
    }
    int64_t num_threads = Pool::shared().num_threads();
    auto num_pieces = static_cast<int64_t>(pieces.size());
    if (num_pieces > 0 && num_pieces < num_threads) {
        pieces.clear();
        for (const Attention& sequence : sequences) {
            split(sequence, (num_threads + num_pieces - 1) / num_pieces, pieces);
        }
    }
    return pieces;
}

/// Where each token's key of head 0 is stored.
std::vector<float*> places_of(const BlockPool& pool, const BlockTable& table) {
    std::vector<float*> places;
    places.reserve(table.num_tokens);
    for (int64_t sequence = 0; sequence < table.num_sequences; ++sequence) {
        int64_t first = table.place(sequence);
        for (int64_t place = first; place < first + table.count(sequence); ++place) {
            float* block = pool.keys + table.blocks(sequence)[place / kBlockKeys] * pool.block;
            places.push_back(block + place % kBlockKeys * pool.width);
        }
    }
    return places;
}

/// Stores keys and values, and brings turned queries to where y will be.
void store(const PagedAttention& step) {
    const BlockPool& pool = step.pool;
    int64_t width = pool.width;
    std::vector<float*> places = places_of(pool, step.table);
    share_rows(step.table.num_tokens, (step.heads + 2 * pool.kv_heads) * width, [&](int64_t begin, int64_t end) {
        Turn turn = step.turn;
        for (int64_t token = begin; token < end; ++token) {
            const float* cosines = step.cosines + token * turn.half;
            const float* sines = step.sines + token * turn.half;
            for (int64_t head = 0; head < pool.kv_heads; ++head) {
                int64_t from = (token * pool.kv_heads + head) * width;
                float* key = places[token] + head * kBlockKeys * width;
                turn.apply(step.keys + from, cosines, sines, width, key);
                std::memcpy(key + pool.keys_size(), step.values + from, width * sizeof(float));
            }
            for (int64_t head = 0; head < step.heads; ++head) {
                int64_t from = (token * step.heads + head) * width;
                turn.apply(step.queries + from, cosines, sines, width, step.y + from);
            }
        }
    });
}

/// Writes the panel whose first key is `first`; behind the last key stand zeros.
void write_panel(const FullHead& head, const FullSizes& sizes, int64_t first, float* panel) {
    int64_t count = std::min(kPanelKeys, sizes.num_keys - first);
    for (int64_t key = 0; key < kPanelKeys; ++key) {
        const float* row = head.keys + (first + key) * head.key_row;
        for (int64_t i = 0; i < sizes.width; ++i) {
            panel[i * kPanelKeys + key] = key < count ? row[i] : 0.0f;
        }
    }
}

}  // namespace

void attend(const std::vector<FullHead>& heads, const FullSizes& sizes) {
    auto num_heads = static_cast<int64_t>(heads.size());
    int64_t num_panels = (sizes.num_keys + kPanelKeys - 1) / kPanelKeys;
    int64_t size = num_panels * kPanelKeys * sizes.width;  // of a head's panels
    std::unique_ptr<float[]> panels(new float[num_heads * size]);
    Pool::shared().run(num_heads * num_panels, [&](int64_t number) {
        int64_t first = number % num_panels * kPanelKeys;
        int64_t head = number / num_panels;
        write_panel(heads[head], sizes, first, panels.get() + head * size + first * sizes.width);
    });
    const Instructions& isa = instructions();
    int64_t num_blocks = (sizes.num_queries + kFullQueries - 1) / kFullQueries;
    Pool::shared().run(num_heads * num_blocks, [&](int64_t number) {
        const FullHead& head = heads[number / num_blocks];
        FullAttention attention{head.queries,
                                head.query_row,
                                panels.get() + number / num_blocks * size,
                                head.values,
                                head.value_row,
                                head.y,
                                head.y_row,
                                sizes.num_keys,
                                sizes.width,
                                sizes.scale};
        int64_t begin = number % num_blocks * kFullQueries;
        int64_t end = std::min(sizes.num_queries, begin + kFullQueries);
        isa.attend_fully(attention, begin, end, scratch(kFullQueries * attention.num_scores()));
    });
}

void attend(std::vector<Attention> sequences) {
    std::erase_if(sequences, [](const Attention& sequence) { return sequence.num_queries == 0; });
    std::stable_sort(sequences.begin(), sequences.end(), [](const Attention& left, const Attention& right) {
        return left.num_keys > right.num_keys;  // the longest work comes first
    });
    const Instructions& isa = instructions();
    std::vector<Piece> pieces = pieces_of(sequences);
    Pool::shared().run(static_cast<int64_t>(pieces.size()), [&](int64_t number) {
        const auto& [sequence, block] = pieces[number];
        int64_t num_queries = block.heads * (block.end - block.begin);
        isa.attend(*sequence, block, scratch(num_queries * sequence->num_scores(block.end - 1)));
    });
}

const char* BlockTable::problem(int64_t num_blocks, int64_t window) const {
    int64_t total = 0;
    for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
        int64_t tokens = count(sequence);
        int64_t first = place(sequence);
        if (tokens < 0 || first < 0) {
            return "has a negative number of tokens or place";
        }
        total += tokens;
        if (tokens == 0) {
            continue;
        }
        int64_t last_block = (first + tokens - 1) / kBlockKeys;
        if (last_block >= most_blocks) {
            return "has fewer blocks than its tokens need";
        }
        int64_t seen = window > 0 ? std::max<int64_t>(0, first + 1 - window) : 0;
        for (int64_t block = seen / kBlockKeys; block <= last_block; ++block) {
            int64_t number = blocks(sequence)[block];
            if (number < 0 || number >= num_blocks) {
                return "has a block that lies outside the pool";
            }
        }
    }
    return total == num_tokens ? nullptr : "has not as many tokens as queries";
}

void attend(const PagedAttention& step) {
    store(step);
    const BlockPool& pool = step.pool;
    int64_t width = pool.width;
    Layout in_block{kBlockKeys * width, width};
    std::vector<Attention> sequences;
    int64_t token = 0;
    for (int64_t number = 0; number < step.table.num_sequences; ++number) {
        int64_t count = step.table.count(number);
        const int32_t* blocks = step.table.blocks(number);
        float* y = step.y + token * step.heads * width;
        sequences.push_back({y,
                             {width, step.heads * width},
                             {pool.keys, in_block, pool.block, blocks},
                             {pool.keys + pool.keys_size(), in_block, pool.block, blocks},
                             y,
                             step.heads,
                             pool.kv_heads,
                             count,
                             step.table.place(number) + count,
                             width,
                             step.scale,
                             true,
                             step.window});
        token += count;
    }
    attend(std::move(sequences));
}

}  // namespace pomona
