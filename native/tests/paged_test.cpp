// Checks attention, over arrays and over blocks, without Python and MLX: `make check-native`.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "attention.h"
#include "harness.h"
#include "instruction_set.h"
#include "memory.h"
#include "pool.h"

namespace {

using namespace harness;
using pomona::Attention;
using pomona::kBlockKeys;

/// The exact answer for one query of keys that lie one behind the other.
std::vector<double> exact_attention(const Attention& attention, int64_t head, int64_t query) {
    const float* row = attention.queries + head * attention.queries_layout.head + query * attention.queries_layout.row;
    int64_t kv_head = head / (attention.heads / attention.kv_heads);
    std::vector<double> sums(attention.width);
    double total = 0;
    for (int64_t key = attention.begin(query); key < attention.end(query); ++key) {
        double score = 0;
        for (int64_t i = 0; i < attention.width; ++i) {
            score += static_cast<double>(row[i]) * attention.keys.at(kv_head, key)[i];
        }
        double weight = std::exp(score * attention.scale);
        total += weight;
        for (int64_t i = 0; i < attention.width; ++i) {
            sums[i] += weight * attention.values.at(kv_head, key)[i];
        }
    }
    for (double& sum : sums) {
        sum /= total;
    }
    return sums;
}

/// The largest difference of any number from the exact one.
double error_of(const Attention& attention) {
    double worst = 0;
    for (int64_t head = 0; head < attention.heads; ++head) {
        for (int64_t query = 0; query < attention.num_queries; ++query) {
            std::vector<double> exact = exact_attention(attention, head, query);
            const float* y = attention.y + (query * attention.heads + head) * attention.width;
            for (int64_t i = 0; i < attention.width; ++i) {
                worst = std::fmax(worst, std::fabs(y[i] - exact[i]));
            }
        }
    }
    return worst;
}

void check_attention_over(int64_t width, int64_t num_keys) {
    constexpr int64_t kRoom = 512;  // a cache with room behind the keys
    constexpr int64_t kHeads = 4;
    int64_t num_queries = 1 + random_below(static_cast<int>(num_keys));
    Input queries(kHeads * num_queries, width, 1);
    Input keys(2 * kRoom, width, 1);
    Input values(2 * kRoom, width, 1);
    std::vector<float> y(kHeads * num_queries * width);
    pomona::Layout in_cache{kRoom * width, width};
    Attention attention{queries.values.data(),
                        {num_queries * width, width},
                        {keys.values.data(), in_cache, kBlockKeys * width, nullptr},
                        {values.values.data(), in_cache, kBlockKeys * width, nullptr},
                        y.data(),
                        kHeads,
                        2,
                        num_queries,
                        num_keys,
                        width,
                        1 / std::sqrt(static_cast<float>(width)),
                        random_below(4) > 0,
                        random_below(2) * random_below(60)};
    pomona::attend({attention});
    double worst = error_of(attention);
    std::string name = std::to_string(num_queries) + " queries, " + std::to_string(num_keys) + " keys of " +
                       std::to_string(width) + ", window " + std::to_string(attention.window);
    expect(worst < kTolerance, name + ": attention is off by " + std::to_string(worst));

    std::vector<float> last(kHeads * width);
    Attention alone = attention;
    alone.queries += (num_queries - 1) * width;
    alone.num_queries = 1;
    alone.y = last.data();
    pomona::attend({alone});
    const float* in_company = y.data() + (num_queries - 1) * kHeads * width;
    bool equal = std::memcmp(last.data(), in_company, kHeads * width * sizeof(float)) == 0;
    expect(equal, name + ": the last query differs from itself alone");
}

void check_attention() {
    for (int64_t width : {5, 8, 64, 80, 128}) {
        for (int64_t num_keys : {1, 15, 16, 17, 70, 300}) {
            check_attention_over(width, num_keys);
        }
    }
}

/// The shape of a layer.
struct Shape {
    int64_t heads;
    int64_t kv_heads;
    int64_t width;
    int64_t half;  // pairs that are turned
    bool are_neighbours;
    int64_t window;

    std::string name() const {
        return std::string(pomona::instructions().name) + ", " + std::to_string(heads) + "/" +
               std::to_string(kv_heads) + " heads of " + std::to_string(width) + ", window " + std::to_string(window);
    }
};

/// A sequence, and how far it is.
struct Sequence {
    Sequence(const Shape& shape, int64_t length)
        : length(length),
          queries(length, shape.heads * shape.width, 1),
          keys(length, shape.kv_heads * shape.width, 1),
          values(length, shape.kv_heads * shape.width, 1),
          cosines(length, shape.half, 1),
          sines(length, shape.half, 1) {}

    int64_t num_blocks() const { return (length + kBlockKeys - 1) / kBlockKeys; }

    int64_t length;
    int64_t done = 0;
    Input queries;
    Input keys;
    Input values;
    Input cosines;
    Input sines;
    std::vector<int32_t> blocks;
    std::vector<float> alone;  // what each token gets in a step of its own
};

/// What every token of the sequence sees, by `attend` over plain arrays, one token at a time.
std::vector<float> one_by_one(const Shape& shape, const Sequence& sequence) {
    auto turned = [&](const Input& input, int64_t heads) {
        std::vector<float> rows(input.values.size());
        for (int64_t row = 0; row < sequence.length * heads; ++row) {
            int64_t angles = row / heads * shape.half;
            pomona::Turn{shape.half, shape.are_neighbours}.apply(input.values.data() + row * shape.width,
                                                                 sequence.cosines.values.data() + angles,
                                                                 sequence.sines.values.data() + angles,
                                                                 shape.width,
                                                                 rows.data() + row * shape.width);
        }
        return rows;
    };
    std::vector<float> queries = turned(sequence.queries, shape.heads);
    std::vector<float> keys = turned(sequence.keys, shape.kv_heads);
    std::vector<float> y(queries.size());
    int64_t row = shape.kv_heads * shape.width;
    for (int64_t token = 0; token < sequence.length; ++token) {
        int64_t first = shape.window > 0 ? std::max<int64_t>(0, token + 1 - shape.window) : 0;
        pomona::Layout layout{shape.width, row};
        pomona::attend({{queries.data() + token * shape.heads * shape.width,
                         {shape.width, shape.width},
                         {keys.data() + first * row, layout, kBlockKeys * row, nullptr},
                         {sequence.values.values.data() + first * row, layout, kBlockKeys * row, nullptr},
                         y.data() + token * shape.heads * shape.width,
                         shape.heads,
                         shape.kv_heads,
                         1,
                         token + 1 - first,
                         shape.width,
                         0.25f,
                         true,
                         0}});
    }
    return y;
}

/// A step's tokens of one sequence.
struct Chunk {
    Sequence* sequence;
    int64_t count;
};

/// Appends what a chunk's tokens have.
void append(std::vector<float>& all, const Input& input, const Chunk& chunk) {
    int64_t row = static_cast<int64_t>(input.values.size()) / chunk.sequence->length;
    auto begin = input.values.begin() + chunk.sequence->done * row;
    all.insert(all.end(), begin, begin + chunk.count * row);
}

/// Blocks of two layers, of which the second is used: the buffer ends with the last block.
class Blocks {
  public:
    Blocks(const Shape& shape, std::vector<Sequence>& sequences) : shape_(shape) {
        for (const Sequence& sequence : sequences) {
            num_blocks_ += sequence.num_blocks();
        }
        std::vector<int32_t> numbers(num_blocks_);
        std::iota(numbers.begin(), numbers.end(), 0);
        std::shuffle(numbers.begin(), numbers.end(), random_bits());
        for (Sequence& sequence : sequences) {
            most_blocks_ = std::max(most_blocks_, sequence.num_blocks());
            sequence.blocks.assign(numbers.end() - sequence.num_blocks(), numbers.end());
            numbers.resize(numbers.size() - sequence.num_blocks());
            sequence.alone = one_by_one(shape, sequence);
        }
        values_.assign(num_blocks_ * block(), NAN);
    }

    /// Runs one step.
    /// @return y of all tokens.
    std::vector<float> step(const std::vector<Chunk>& chunks) {
        std::vector<float> queries, keys, values, cosines, sines;
        std::vector<int32_t> rows;
        for (const Chunk& chunk : chunks) {
            append(queries, chunk.sequence->queries, chunk);
            append(keys, chunk.sequence->keys, chunk);
            append(values, chunk.sequence->values, chunk);
            append(cosines, chunk.sequence->cosines, chunk);
            append(sines, chunk.sequence->sines, chunk);
            append_row(rows, chunk);
        }
        auto num_chunks = static_cast<int64_t>(chunks.size());
        int64_t num_tokens = static_cast<int64_t>(queries.size()) / (shape_.heads * shape_.width);
        std::vector<float> y(queries.size(), NAN);
        pomona::PagedAttention step{queries.data(),
                                    keys.data(),
                                    values.data(),
                                    cosines.data(),
                                    sines.data(),
                                    {shape_.half, shape_.are_neighbours},
                                    {values_.data() + block() / 2, block(), num_blocks_, shape_.kv_heads, shape_.width},
                                    {rows.data(), num_chunks, most_blocks_, num_tokens},
                                    y.data(),
                                    shape_.heads,
                                    0.25f,
                                    shape_.window};
        const char* problem = step.table.problem(num_blocks_, shape_.window);
        expect(problem == nullptr, shape_.name() + ": the table " + (problem ? problem : ""));
        pomona::attend(step);
        return y;
    }

    bool first_layer_is_untouched() const {
        for (int64_t i = 0; i < num_blocks_ * block(); ++i) {
            if (i % block() < block() / 2 && !std::isnan(values_[i])) {
                return false;
            }
        }
        return true;
    }

  private:
    int64_t block() const { return 2 * 2 * shape_.kv_heads * kBlockKeys * shape_.width; }

    /// Blocks that no token sees are given as -1.
    void append_row(std::vector<int32_t>& rows, const Chunk& chunk) const {
        const Sequence& sequence = *chunk.sequence;
        int64_t first = shape_.window > 0 ? std::max<int64_t>(0, sequence.done + 1 - shape_.window) : 0;
        rows.push_back(static_cast<int32_t>(chunk.count));
        rows.push_back(static_cast<int32_t>(sequence.done));
        for (int64_t number = 0; number < most_blocks_; ++number) {
            bool is_seen = number >= first / kBlockKeys && number * kBlockKeys < sequence.done + chunk.count;
            rows.push_back(is_seen ? sequence.blocks[number] : -1);
        }
    }

    Shape shape_;
    int64_t num_blocks_ = 0;
    int64_t most_blocks_ = 0;
    std::vector<float> values_;
};

/// Some of the next tokens of each sequence, or none.
std::vector<Chunk> random_chunks(std::vector<Sequence>& sequences) {
    std::vector<Chunk> chunks;
    for (Sequence& sequence : sequences) {
        int64_t most = std::min<int64_t>(sequence.length - sequence.done, random_below(3) == 0 ? 70 : 3);
        chunks.push_back({&sequence, random_below(static_cast<int>(most) + 1)});
    }
    return chunks;
}

/// Brings sequences to their ends in steps of random chunks, by random numbers of threads.
/// @param breaks_table whether two blocks of the first are swapped early, so that tokens see what is not theirs.
/// @return whether every token had the bits that it has alone.
bool steps_equal(const Shape& shape, const std::vector<int64_t>& lengths, bool breaks_table) {
    std::vector<Sequence> sequences;
    for (int64_t length : lengths) {
        sequences.emplace_back(shape, length);
    }
    Blocks blocks(shape, sequences);
    bool equal = true;
    auto is_over = [](const Sequence& sequence) { return sequence.done == sequence.length; };
    while (!std::all_of(sequences.begin(), sequences.end(), is_over)) {
        pomona::Pool::shared().resize(1 + random_below(4));
        std::vector<Chunk> chunks = random_chunks(sequences);
        std::vector<float> y = blocks.step(chunks);
        auto row = y.begin();
        for (const auto& [sequence, count] : chunks) {
            int64_t size = count * shape.heads * shape.width;
            auto right = sequence->alone.begin() + sequence->done * shape.heads * shape.width;
            equal = equal && std::equal(row, row + size, right);
            row += size;
            sequence->done += count;
        }
        if (breaks_table && sequences[0].done > kBlockKeys) {
            std::swap(sequences[0].blocks[0], sequences[0].blocks[1]);
            breaks_table = false;
        }
    }
    expect(blocks.first_layer_is_untouched(), shape.name() + ": another layer is written to");
    return equal;
}

void check_blocks() {
    for (const Shape& shape : {Shape{4, 2, 5, 2, false, 0},
                               Shape{9, 3, 64, 32, false, 0},
                               Shape{3, 1, 20, 10, true, 7},
                               Shape{2, 2, 80, 0, false, 33},
                               Shape{32, 1, 8, 3, true, 1}}) {
        expect(steps_equal(shape, {70, 1, 100, 33}, false), shape.name() + ": tokens differ from themselves alone");
    }
    Shape shape{2, 1, 16, 8, false, 0};
    expect(!steps_equal(shape, {90}, true), shape.name() + ": blocks in a wrong order are not noticed");
}

void check_wrong_tables() {
    struct Case {
        std::vector<int32_t> rows;
        bool is_wrong;
    };
    for (const Case& each : {Case{{3, 31, 0, 1, 2, 0, 5, 5}, false},
                             Case{{3, 30, 0, 7, 0, 0, -9, -9}, true},
                             Case{{3, 30, 0, -1, 0, 0, 5, 5}, true},
                             Case{{3, 64, 0, 1, 0, 0, 5, 5}, true},
                             Case{{3, -1, 0, 1, 2, 0, 5, 5}, true},
                             Case{{-1, 0, 0, 1, 6, 0, 5, 5}, true},
                             Case{{3, 2147483647, 0, 1, 2, 0, 5, 5}, true},
                             Case{{2, 0, 0, 1, 2, 0, 5, 5}, true}}) {
        pomona::BlockTable table{each.rows.data(), 2, 2, 5};
        expect((table.problem(7, 0) != nullptr) == each.is_wrong, "a table is judged wrongly");
    }
    const std::vector<int32_t> row = {1, 70, -1, -1, 4};
    pomona::BlockTable table{row.data(), 1, 3, 1};
    expect(table.problem(7, 7) == nullptr, "blocks before the window are looked at");
    expect(table.problem(7, 8) != nullptr, "a block within the window is not looked at");
}

void check_memory() {
    size_t page = pomona::page_bytes();
    pomona::LazyMemory memory(size_t{1} << 34);
    char* data = memory.data();
    expect(data[0] == 0 && data[(size_t{1} << 34) - 1] == 0, "new memory is zeros");
    std::memset(data, 1, 4 * page);
    pomona::give_back(data + 1, data + 3 * page - 1);
    expect(data[page - 1] == 1 && data[2 * page] == 1, "a page that is not wholly given back is kept");
#if defined(__linux__)
    expect(data[page] == 0 && data[2 * page - 1] == 0, "a page that is given back is zeros again");
#endif
    pomona::give_back(data + 1, data + 2);
}

}  // namespace

int main() {
    check_wrong_tables();
    check_memory();
    for (const pomona::Instructions* instructions : pomona::available_instructions()) {
        std::printf("%s\n", instructions->name);
        pomona::choose_instructions(instructions->name);
        check_attention();
        check_blocks();
    }
    return summary();
}
