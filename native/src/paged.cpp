#include "paged.h"

#include <algorithm>
#include <memory>

#include "attention.h"
#include "lazy_array.h"
#include "memory.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

// The dimensions of a pool.
enum PoolAxis { kBlocks, kLayers, kKeysAndValues, kKvHeads, kTokens, kWidth, kPoolAxes };

constexpr int kRowFacts = 2;  // of a row of the table, before its blocks

void check_pool(const mx::array& pool) {
    require_float32(pool, "pool");
    bool fits = pool.ndim() == kPoolAxes && pool.shape(kKeysAndValues) == 2 && pool.shape(kTokens) == kBlockKeys;
    require(fits && pool.size() > 0, "pool", "has not the shape of a pool");
}

int64_t bytes_of_block(const mx::array& pool) {
    return static_cast<int64_t>(pool.nbytes()) / pool.shape(kBlocks);
}

/// The memory of an array that is written in place: a pool.
float* writable(const mx::array& pool) {
    return const_cast<float*>(pool.data<float>());
}

class CpuPagedAttention : public CpuPrimitive {
  public:
    explicit CpuPagedAttention(const PagedSettings& settings) : settings_(settings) {}

    /// inputs: queries, keys, values, pool, rows, and cosines and sines where there are positions
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        constexpr const char* kNames[] = {"queries", "keys", "values", "pool", "rows", "cosines", "sines"};
        for (size_t i = 0; i < inputs.size(); ++i) {
            require_contiguous(inputs[i], kNames[i]);
        }
        const mx::array& pool = inputs[3];
        const mx::array& rows = inputs[4];
        bool has_positions = inputs.size() > 5;
        int64_t width = pool.shape(kWidth);
        int64_t layer_floats = 2 * pool.shape(kKvHeads) * kBlockKeys * width;
        PagedAttention step{
            inputs[0].data<float>(),
            inputs[1].data<float>(),
            inputs[2].data<float>(),
            has_positions ? inputs[5].data<float>() : nullptr,
            has_positions ? inputs[6].data<float>() : nullptr,
            {has_positions ? inputs[5].shape(1) : 0, settings_.is_interleaved},
            {writable(pool) + settings_.layer * layer_floats,
             pool.shape(kLayers) * layer_floats,
             pool.shape(kBlocks),
             pool.shape(kKvHeads),
             width},
            {rows.data<int32_t>(), rows.shape(0), rows.shape(1) - kRowFacts, inputs[0].shape(1)},
            outputs[0].data<float>(),
            inputs[0].shape(2) / width,
            settings_.scale,
            settings_.window,
        };
        return [step] {
            const char* problem = step.table.problem(step.pool.num_blocks, step.window);
            require(problem == nullptr, "rows", problem);
            attend(step);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    // It writes, so one may never stand for another.
    bool is_equivalent(const mx::Primitive&) const override { return false; }

    DEFINE_NAME(CpuPagedAttention)

  private:
    PagedSettings settings_;
};

void check_tokens(const PagedArrays& arrays) {
    const auto& [queries, keys, values, cosines, sines, pool, rows] = arrays;
    require_float32(queries, "queries");
    require_float32(keys, "keys");
    require_float32(values, "values");
    int width = pool.shape(kWidth);
    int kv_heads = pool.shape(kKvHeads);
    require(queries.ndim() == 3 && queries.shape(0) == 1, "queries", "has not the shape [1, tokens, heads * head_dim]");
    require(queries.shape(2) > 0 && queries.shape(2) % (kv_heads * width) == 0,
            "queries",
            "has no multiple of the pool's heads");
    require(keys.shape() == mx::Shape{1, queries.shape(1), kv_heads * width},
            "keys",
            "has not one row of the pool's heads for each of queries");
    require(values.shape() == keys.shape(), "values", "has not the shape of keys");
}

void check_angles(const mx::array& cosines, const mx::array& sines, int num_tokens, int width) {
    require_float32(cosines, "cosines");
    require_float32(sines, "sines");
    require(cosines.ndim() == 2 && cosines.shape(0) == num_tokens, "cosines", "has not one row for each token");
    require(2 * static_cast<int64_t>(cosines.shape(1)) <= width, "cosines", "is wider than half of a head");
    require(sines.shape() == cosines.shape(), "sines", "has not the shape of cosines");
}

void check_settings(const PagedSettings& settings, const mx::array& pool) {
    require(settings.layer >= 0 && settings.layer < pool.shape(kLayers), "layer", "is none of the pool's");
    require(settings.window >= 0, "window", "is negative");
}

}  // namespace

mx::array kv_pool(int64_t num_blocks, int64_t num_layers, int64_t kv_heads, int64_t head_dim) {
    return lazy_array({num_blocks, num_layers, 2, kv_heads, kBlockKeys, head_dim}, mx::float32).array;
}

void release_blocks(const mx::array& pool, std::vector<int64_t> block_ids) {
    check_pool(pool);
    require(pool.is_available(), "pool", "is not evaluated");
    require_contiguous(pool, "pool");
    for (int64_t block : block_ids) {
        require(block >= 0 && block < pool.shape(kBlocks), "block_ids", "has a number that lies outside the pool");
    }
    std::sort(block_ids.begin(), block_ids.end());
    auto* data = reinterpret_cast<char*>(writable(pool));
    int64_t block_bytes = bytes_of_block(pool);
    for (size_t i = 0; i < block_ids.size();) {
        int64_t first = block_ids[i];
        int64_t end = first + 1;
        for (; i < block_ids.size() && block_ids[i] <= end; ++i) {  // neighbours share the page between them
            end = block_ids[i] + 1;
        }
        give_back(data + first * block_bytes, data + end * block_bytes);
    }
}

mx::array paged_attention(const PagedArrays& arrays, const PagedSettings& settings) {
    const auto& [queries, keys, values, cosines, sines, pool, rows] = arrays;
    check_pool(pool);
    check_tokens(arrays);
    check_settings(settings, pool);
    require(rows.dtype() == mx::int32, "rows", "is not of int32");
    require(rows.ndim() == 2 && rows.shape(1) >= kRowFacts, "rows", "has not the shape [sequences, 2 + blocks]");
    require(cosines.has_value() == sines.has_value(), "sines", "is there without cosines, or the other way round");
    std::vector<mx::array> inputs{queries, keys, values, pool, rows};
    if (cosines && sines) {
        check_angles(*cosines, *sines, queries.shape(1), pool.shape(kWidth));
        inputs.insert(inputs.end(), {*cosines, *sines});
    }
    return made_by(std::make_shared<CpuPagedAttention>(settings), inputs);
}

}  // namespace pomona
