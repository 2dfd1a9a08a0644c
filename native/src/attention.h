#pragma once

#include <cstdint>
#include <vector>

#include "elements.h"
#include "kernels.h"

/// Attention on the threads of the shared pool.
namespace pomona {

/// Computes the attention of several sequences. Every query must see a key.
void attend(std::vector<Attention> sequences);

/// One head whose queries see all of its keys: where each row begins, and floats from one to the next.
struct FullHead {
    const float* queries;
    int64_t query_row;
    const float* keys;
    int64_t key_row;
    const float* values;
    int64_t value_row;
    float* y;
    int64_t y_row;
};

/// What such heads have in common.
struct FullSizes {
    int64_t num_queries;
    int64_t num_keys;
    int64_t width;
    float scale;
};

/// Computes the attention of several heads in which every query sees every key.
void attend(const std::vector<FullHead>& heads, const FullSizes& sizes);

/// How one layer's keys and values lie in blocks.
struct BlockPool {
    float* keys;         ///< of block 0: [kv heads, kBlockKeys, width], and behind them as many values
    int64_t block;       ///< floats from one block to the next
    int64_t num_blocks;  ///< numbers of blocks that there are
    int64_t kv_heads;
    int64_t width;

    /// Floats of a block's keys, and so from them to its values.
    int64_t keys_size() const { return kv_heads * kBlockKeys * width; }
};

/// The tokens of several sequences, one sequence's behind the other's, and where the keys and values of each lie.
struct BlockTable {
    /// int32 [sequences, 2 + most_blocks]: how many tokens, the place of the first of them in its sequence, and the
    /// numbers of the sequence's blocks in their order, of which those that no token sees may be anything.
    const int32_t* rows;
    int64_t num_sequences;
    int64_t most_blocks;
    int64_t num_tokens;

    int64_t count(int64_t sequence) const { return row(sequence)[0]; }
    int64_t place(int64_t sequence) const { return row(sequence)[1]; }
    const int32_t* blocks(int64_t sequence) const { return row(sequence) + 2; }

    /// What is wrong with the table.
    ///
    /// @param window as in `Attention`: what lies before it is not looked at.
    /// @return null, or a phrase that follows the table's name.
    const char* problem(int64_t num_blocks, int64_t window) const;

  private:
    const int32_t* row(int64_t sequence) const { return rows + sequence * (2 + most_blocks); }
};

/// One layer's attention of new tokens to their sequences, which they join.
struct PagedAttention {
    const float* queries;  ///< [tokens, heads, width], positions not yet applied
    const float* keys;     ///< [tokens, kv heads, width], the same
    const float* values;   ///< [tokens, kv heads, width]
    const float* cosines;  ///< [tokens, half]; null: no positions
    const float* sines;    ///< the same
    Turn turn;
    BlockPool pool;
    BlockTable table;
    float* y;  ///< [tokens, heads, width], written
    int64_t heads;
    float scale;
    int64_t window;
};

/// Stores the tokens' keys, turned by their positions, and values in the pool, and then lets every token attend to its
/// sequence up to itself. `table` must be without a problem, and no two tokens may have the same place in a block.
void attend(const PagedAttention& step);

}  // namespace pomona
