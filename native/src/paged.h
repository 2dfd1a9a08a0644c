#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operands.h"

/// Attention over keys and values in blocks, as an operation of MLX's graph, on the CPU.
namespace pomona {

/// Makes a pool of blocks.
///
/// @return float32 [num_blocks, num_layers, 2, kv_heads, kBlockKeys, head_dim] of zeros, whose memory is taken from the
///     system when it is written to, and is not part of MLX's count.
/// @throws ShapeRejected, std::bad_alloc
mlx::core::array kv_pool(int64_t num_blocks, int64_t num_layers, int64_t kv_heads, int64_t head_dim);

/// Gives the pages that lie wholly within some blocks back to the system. No running step may use these blocks.
///
/// @param pool one that `kv_pool` made.
/// @throws OperandRejected
void release_blocks(const mlx::core::array& pool, std::vector<int64_t> block_ids);

/// What a layer attends with. All but `rows` is float32, and all of it row-contiguous.
struct PagedArrays {
    mlx::core::array queries;                 ///< [1, tokens, heads * head_dim], positions not yet applied
    mlx::core::array keys;                    ///< [1, tokens, kv_heads * head_dim], the same
    mlx::core::array values;                  ///< [1, tokens, kv_heads * head_dim]
    std::optional<mlx::core::array> cosines;  ///< [tokens, half], half at most head_dim / 2; none: no positions
    std::optional<mlx::core::array> sines;    ///< the same
    mlx::core::array pool;                    ///< as `kv_pool` makes it
    mlx::core::array rows;                    ///< int32 [sequences, 2 + most_blocks]: see `BlockTable`
};

/// How a layer attends.
struct PagedSettings {
    int64_t layer;
    float scale;
    int64_t window;       ///< a token sees so many positions at most, its own the last of them; 0: all up to its own
    bool is_interleaved;  ///< whether neighbours are rotated instead of halves
};

/// Rotates tokens' queries and keys by their positions, stores keys and values in the pool, in place, and lets every
/// token attend to its sequence up to itself.
///
/// @return float32 [1, tokens, heads * head_dim].
/// @throws OperandRejected: here, or for the layout of an array or what stands in `rows` when it is evaluated.
mlx::core::array paged_attention(const PagedArrays& arrays, const PagedSettings& settings);

}  // namespace pomona
