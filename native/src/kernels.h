#pragma once

#include <cstdint>

/// The files of `instructions/` are compiled with flags of their own, so a function that they share with others must
/// have no body of its own: the linker would keep one of several, perhaps one that this processor cannot run.
#define POMONA_INLINE [[gnu::always_inline]] inline

/// What the arithmetic kernels agree on. Nothing here knows MLX or Python, and nothing here allocates.
///
/// One order of accumulation: the columns of a product are cut into chunks of `kChunkColumns`. Within a chunk every
/// output has one vector of partial sums, to which the products are added by fused multiply-add in the order in which
/// weights are read; at the end of the chunk its lanes are added as a fixed tree, and the chunks' sums are added from
/// left to right. The order depends on the number of columns alone, so an output has the same bits whatever the number
/// of rows, their place, the kernel that took them or the number of threads.
namespace pomona {

/// Columns that are read together: the smallest group, a whole number of bytes and words for every width of a code.
constexpr int64_t kUnitColumns = 32;

/// Columns that are added up before their sum joins the output. A tile of so many fits the first-level cache.
constexpr int64_t kChunkColumns = 768;

/// Groups of the smallest size in a chunk.
constexpr int64_t kChunkGroups = kChunkColumns / kUnitColumns;

/// Columns of the next chunk where so many are left, filled up to a unit: the last ones, if less than one, stand alone.
POMONA_INLINE int64_t columns_of_chunk(int64_t left) {
    return left >= kChunkColumns ? kChunkColumns : left > kUnitColumns ? left - left % kUnitColumns : kUnitColumns;
}

enum class FloatType { float32, bfloat16, float16 };

/// A matrix in MLX's affine format: within a group, value = scale * code + bias. All of it is row-contiguous.
struct QuantizedMatrix {
    const uint8_t* codes;  ///< `bits` bits a code, the first code in the lowest bits, each row a whole number of words
    const void* scales;    ///< [rows, columns / group_size]
    const void* biases;    ///< [rows, columns / group_size]
    FloatType scale_type;
    int64_t rows;
    int64_t columns;  ///< a multiple of `group_size`
    int group_size;   ///< 32, 64 or 128
    int bits;         ///< 2, 3, 4, 5, 6 or 8

    POMONA_INLINE int64_t row_bytes() const { return columns * bits / 8; }
    POMONA_INLINE int64_t groups() const { return columns / group_size; }
};

/// A matrix of floats as they are stored, row-contiguous.
struct DenseMatrix {
    const uint8_t* values;  ///< [rows, columns], at a multiple of the size of one
    FloatType type;
    int64_t rows;
    int64_t columns;

    POMONA_INLINE int64_t value_bytes() const { return type == FloatType::float32 ? 4 : 2; }
    POMONA_INLINE const uint8_t* at(int64_t row, int64_t column) const {
        return values + (row * columns + column) * value_bytes();
    }
};

/// Rows of x brought into the order in which weights are read, chunk after chunk: within a chunk, row after row.
struct PackedRows {
    float* values;  ///< floats at a multiple of 64 bytes: `rows` times the columns, with zeros up to a whole unit
    int64_t rows;
    int64_t columns;

    /// Where a row's part of the chunk that begins at column `begin` lies; the next row's follows it.
    POMONA_INLINE float* at(int64_t begin, int64_t row, int64_t chunk_columns) const {
        return values + begin * rows + row * chunk_columns;
    }
};

/// One product of packed rows and the transposed matrix.
template <class Matrix>
struct Product {
    Matrix matrix;
    PackedRows x;
    float* y;                       ///< [..., matrix.rows]
    const int64_t* y_rows;          ///< which row of y each row of x fills; null: the same one
    const float* addend = nullptr;  ///< what is added to each output when it is complete; null: nothing
};

/// Keys that lie one behind the other, wherever the next ones lie: a multiple of every vector's lanes.
constexpr int64_t kBlockKeys = 32;

/// How the elements of a [heads, rows, width] array lie, in floats. Those of a row lie side by side.
struct Layout {
    int64_t head;
    int64_t row;
};

/// The keys of one sequence, or its values: blocks of `kBlockKeys` that may lie anywhere.
struct KeyBlocks {
    const float* values;     ///< key 0 of head 0 in block number 0
    Layout layout;           ///< within a block
    int64_t block;           ///< floats from one number of a block to the next
    const int32_t* numbers;  ///< of the blocks in the order of their keys; null: 0, 1, 2 and so on

    /// Where a key of a head begins; up to the end of its block the next ones follow.
    POMONA_INLINE const float* at(int64_t head, int64_t key) const {
        int64_t place = key / kBlockKeys;
        int64_t number = numbers ? numbers[place] : place;
        return values + number * block + head * layout.head + key % kBlockKeys * layout.row;
    }
};

/// Queries that are computed together, so that keys and values come from the cache once for all of them.
constexpr int64_t kQueryBlock = 16;

/// Queries `begin` to `end` of some heads that read the same keys: together at most `kQueryBlock`.
struct QueryBlock {
    int64_t head;  ///< the first of them
    int64_t heads;
    int64_t begin;
    int64_t end;
};

/// Attention of one sequence's queries over its keys and values. Query head h reads head h / (heads / kv_heads) of
/// them.
///
/// A query sees the keys that stand before it or where it stands, the last query at the last key, or all of them; of
/// these the last `window`. Its sums go over the keys that it sees, from the first to the last, and the first of them
/// decides alone how lanes are filled: so its bits are those of the keys that it sees, whatever other queries there are
/// and wherever the keys lie.
struct Attention {
    const float* queries;
    Layout queries_layout;
    KeyBlocks keys;
    KeyBlocks values;
    float* y;  ///< [queries, heads, width], row-contiguous; may be where the queries are
    int64_t heads;
    int64_t kv_heads;
    int64_t num_queries;
    int64_t num_keys;
    int64_t width;
    float scale;
    bool is_causal;
    int64_t window;  ///< 0: a query sees all before it

    /// The key behind the last one that a query sees.
    POMONA_INLINE int64_t end(int64_t query) const { return is_causal ? num_keys - num_queries + query + 1 : num_keys; }

    /// The first key that a query sees.
    POMONA_INLINE int64_t begin(int64_t query) const {
        int64_t seen = end(query);
        return window > 0 && window < seen ? seen - window : 0;
    }

    /// Floats that the scores of each query up to this one take: of the keys that it sees, rounded up, and as many on
    /// either side as may be computed in vain, because keys are taken in blocks.
    POMONA_INLINE int64_t num_scores(int64_t query) const {
        constexpr int64_t kMostLanes = 16;
        return 2 * kMostLanes + (end(query) - begin(query) + kMostLanes - 1) / kMostLanes * kMostLanes;
    }
};

/// Keys that stand side by side for each element of their width, where all queries see all of them.
constexpr int64_t kPanelKeys = 64;

/// Queries of one head that are taken together there: their scores stay in the second-level cache.
constexpr int64_t kFullQueries = 24;

/// Attention of one head in which every query sees every key. A query's bits are those of itself and of the keys,
/// whatever other queries there are.
struct FullAttention {
    const float* queries;
    int64_t query_row;    ///< floats from one to the next
    const float* panels;  ///< [keys / kPanelKeys rounded up, width, kPanelKeys], anything finite behind the last key
    const float* values;
    int64_t value_row;
    float* y;
    int64_t y_row;
    int64_t num_keys;
    int64_t width;
    float scale;

    /// Floats that the scores of a query take.
    POMONA_INLINE int64_t num_scores() const { return (num_keys + kPanelKeys - 1) / kPanelKeys * kPanelKeys; }
};

/// Some value rows of one head's memory, and the tokens that go through it. Steps are in floats, from one token to the
/// next.
struct MemoryWalk {
    const float* queries;
    const float* keys;
    const float* values;    ///< one for each row
    int64_t token_step;     ///< of queries, keys and values
    const float* factors;   ///< what is left of the memory
    const float* weights;   ///< how much of what is missing is taken in
    int64_t gate_step;      ///< of factors and weights
    const float* products;  ///< of key and query
    int64_t product_step;
    int64_t key_dim;
    float* y;  ///< one for each row, written
    int64_t y_step;
    float* memory;  ///< [num_rows, key_dim], changed
    int64_t num_rows;
    int64_t num_tokens;
};

/// Logits that a draw takes together: it looks at one number of each block before it looks into any.
constexpr int64_t kDrawBlock = 64;

/// The kernels, compiled for one instruction set.
struct Instructions {
    const char* name;
    int output_tile;  ///< outputs that are computed together: split the work at its multiples

    /// Packs one row of x, whose elements lie `step` floats apart.
    void (*pack)(const float* row, int64_t step, int bits, const PackedRows& packed, int64_t packed_row);

    /// Computes outputs `begin` to `end` of every row of x.
    void (*multiply)(const Product<QuantizedMatrix>& product, int64_t begin, int64_t end);

    /// Writes a row of the matrix as float32, in the order of its columns.
    void (*expand)(const QuantizedMatrix& matrix, int64_t row, float* values);

    /// The same three for a matrix that is not quantized.
    void (*pack_plain)(const float* row, int64_t step, const PackedRows& packed, int64_t packed_row);
    void (*multiply_dense)(const Product<DenseMatrix>& product, int64_t begin, int64_t end);
    void (*widen)(const DenseMatrix& matrix, int64_t row, float* values);

    /// y = addend + the sum of the matrix's rows, each multiplied by its own of the factors, in their order.
    void (*spread)(const float* factors, const DenseMatrix& matrix, const float* addend, float* y);

    /// y = x / sqrt(mean(x * x) + epsilon) * weight, for one row.
    void (*normalize)(const float* x, const float* weight, float epsilon, int64_t width, float* y);

    /// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, for one row.
    void (*center)(const float* x, const float* weight, const float* bias, float epsilon, int64_t width, float* y);

    /// y = x * Phi(x), element by element.
    void (*gelu)(const float* x, int64_t count, float* y);

    /// y = gate / (1 + exp(-gate)) * up, element by element.
    void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);

    /// y = gelu(gate) * up, element by element; gelu(g) = g * (1 + tanh(u)) / 2, u = sqrt(2 / pi) * (g + 0.044715 g^3).
    void (*geglu)(const float* gate, const float* up, int64_t count, float* y);

    /// y = x / (1 + exp(-gate)), element by element.
    void (*sigmoid_gate)(const float* x, const float* gate, int64_t count, float* y);

    /// y = bound * tanh(x / bound), element by element.
    void (*soft_bound)(const float* x, float bound, int64_t count, float* y);

    /// The sum of the products of two rows' elements.
    float (*dot)(const float* left, const float* right, int64_t count);

    /// y = silu of the sum over the taps of rows[tap] * weights[tap], element by element.
    void (*convolve)(const float* const* rows, const float* weights, int64_t taps, int64_t width, float* y);

    /// Goes through tokens with some rows of a memory.
    void (*remember)(const MemoryWalk& walk);

    /// Turns the pairs (x[i], x[i + half]) of one row by the angles of which it gets cosines and sines; y may be x.
    void (*rotate)(const float* x, const float* cosines, const float* sines, int64_t half, float* y);

    /// The same for the pairs (x[2 * i], x[2 * i + 1]).
    void (*rotate_neighbours)(const float* x, const float* cosines, const float* sines, int64_t half, float* y);

    /// Computes some queries, each of which sees a key at least.
    /// `scores` has place for `num_scores` of the last query, for each of them.
    void (*attend)(const Attention& attention, const QueryBlock& block, float* scores);

    /// Computes queries `begin` to `end`, at most `kFullQueries`. `scores` has place for `num_scores` of each.
    void (*attend_fully)(const FullAttention& attention, int64_t begin, int64_t end, float* scores);

    /// Writes the largest of each `kDrawBlock` floats.
    /// Returns the largest of all, or what is no number where one of them is none.
    float (*peaks)(const float* x, int64_t count, float* peaks);

    /// weights = exp((x - shift) * sharpness), element by element; 0 where that is below exp(-87).
    /// No x is above `shift`.
    void (*weigh)(const float* x, int64_t count, float shift, float sharpness, float* weights);

    /// Writes the sum of each `kDrawBlock` such weights.
    void (*sum_weights)(const float* x, int64_t count, float shift, float sharpness, float* sums);
};

/// Each is null where it was not compiled in: its file is for another processor.
const Instructions* avx512_instructions();
const Instructions* avx2_instructions();
const Instructions* neon_instructions();
const Instructions* portable_instructions();

}  // namespace pomona
