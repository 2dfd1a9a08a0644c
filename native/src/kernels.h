#pragma once

#include <cstdint>

/// The files of `instructions/` are compiled with flags of their own, so a function that they share with others must
/// have no body of its own: the linker would keep one of several, perhaps one that this processor cannot run.
#define POMONA_INLINE [[gnu::always_inline]] inline

/// What the arithmetic kernels agree on. Nothing here knows MLX or Python, and nothing here allocates.
///
/// One order of accumulation: the columns of a product are cut into chunks of `kChunkColumns`. Within a chunk every
/// output has one vector of partial sums, to which the products are added by fused multiply-add in the order in which
/// codes unpack; at the end of the chunk its lanes are added as a fixed tree, and the chunks' sums are added from left
/// to right. The order depends on the number of columns alone, so an output has the same bits whatever the number of
/// rows, their place, the kernel that took them or the number of threads.
namespace pomona {

/// Columns that unpack together: the smallest group, a whole number of bytes and words for every width of a code.
constexpr int64_t kUnitColumns = 32;

/// Columns that are added up before their sum joins the output. A tile of so many fits the first-level cache.
constexpr int64_t kChunkColumns = 768;

/// Groups of the smallest size in a chunk.
constexpr int64_t kChunkGroups = kChunkColumns / kUnitColumns;

enum class ScaleType { float32, bfloat16, float16 };

/// A matrix in MLX's affine format: within a group, value = scale * code + bias. All of it is row-contiguous.
struct QuantizedMatrix {
    const uint8_t* codes;  ///< `bits` bits a code, the first code in the lowest bits, each row a whole number of words
    const void* scales;    ///< [rows, columns / group_size]
    const void* biases;    ///< [rows, columns / group_size]
    ScaleType scale_type;
    int64_t rows;
    int64_t columns;  ///< a multiple of `group_size`
    int group_size;   ///< 32, 64 or 128
    int bits;         ///< 2, 3, 4, 5, 6 or 8

    POMONA_INLINE int64_t row_bytes() const { return columns * bits / 8; }
    POMONA_INLINE int64_t groups() const { return columns / group_size; }
};

/// Rows of x brought into the order in which codes unpack, chunk after chunk: within a chunk, row after row.
struct PackedRows {
    float* values;  ///< rows * columns floats, at a multiple of 64 bytes
    int64_t rows;
    int64_t columns;

    /// Where a row's part of the chunk that begins at column `begin` lies; the next row's follows it.
    POMONA_INLINE float* at(int64_t begin, int64_t row, int64_t chunk_columns) const {
        return values + begin * rows + row * chunk_columns;
    }
};

/// One product of packed rows and the transposed matrix.
struct Product {
    QuantizedMatrix matrix;
    PackedRows x;
    float* y;               ///< [..., matrix.rows]
    const int64_t* y_rows;  ///< which row of y each row of x fills; null: the same one
};

/// How the elements of a [batches, heads, rows, width] array lie, in floats. Those of a row lie side by side.
struct Layout {
    int64_t batch;
    int64_t head;
    int64_t row;
};

/// Attention of queries over keys and values. Query head h reads head h / (heads / kv_heads) of the others.
///
/// A query sees the keys that stand before it or where it stands, the last query at the last key, or all of them. Its
/// sums go over the keys in their order, whatever other queries there are.
struct Attention {
    const float* queries;
    const float* keys;
    const float* values;
    float* y;  ///< [batches, queries, heads, width], row-contiguous
    Layout queries_layout;
    Layout keys_layout;
    Layout values_layout;
    int64_t batches;
    int64_t heads;
    int64_t kv_heads;
    int64_t num_queries;
    int64_t num_keys;
    int64_t width;
    float scale;
    bool is_causal;

    /// How many keys a query sees.
    POMONA_INLINE int64_t visible(int64_t query) const {
        return is_causal ? num_keys - num_queries + query + 1 : num_keys;
    }
};

/// Queries that are computed together, so that keys and values come from the cache once for all of them.
constexpr int64_t kQueryBlock = 16;

/// The kernels, compiled for one instruction set.
struct Instructions {
    const char* name;
    int output_tile;  ///< outputs that are computed together: split the work at its multiples

    /// Packs one row of x, whose elements lie `step` floats apart.
    void (*pack)(const float* row, int64_t step, int bits, const PackedRows& packed, int64_t packed_row);

    /// Computes outputs `begin` to `end` of every row of x.
    void (*multiply)(const Product& product, int64_t begin, int64_t end);

    /// Writes a row of the matrix as float32, in the order of its columns.
    void (*expand)(const QuantizedMatrix& matrix, int64_t row, float* values);

    /// y = x / sqrt(mean(x * x) + epsilon) * weight, for one row.
    void (*normalize)(const float* x, const float* weight, float epsilon, int64_t width, float* y);

    /// y = gate / (1 + exp(-gate)) * up, element by element.
    void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);

    /// Turns the pairs (x[i], x[i + half]) of one row by the angles of which it gets cosines and sines.
    void (*rotate)(const float* x, const float* cosines, const float* sines, int64_t half, float* y);

    /// Computes queries `begin` to `end`, at most `kQueryBlock`, of one head. All of them see a key at least.
    /// `scores` has place for `end - begin` times the keys, rounded up to a multiple of 16.
    void (*attend)(const Attention& attention, int64_t batch, int64_t head, int64_t begin, int64_t end, float* scores);
};

/// Each is null where it was not compiled in: its file is for another processor.
const Instructions* avx512_instructions();
const Instructions* avx2_instructions();
const Instructions* neon_instructions();
const Instructions* portable_instructions();

}  // namespace pomona
