#include "encoder.h"

#include <memory>
#include <utility>
#include <vector>

#include "attention.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

constexpr const char* kNames[] = {"queries", "keys", "values"};

/// Attention of arrays [batches, rows, heads * width], whose elements of a row lie side by side.
class RowAttention : public CpuPrimitive {
  public:
    RowAttention(int num_heads, float scale) : num_heads_(num_heads), scale_(scale) {}

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

  protected:
    static void check(const std::vector<mx::array>& inputs) {
        for (int i = 0; i < 3; ++i) {
            bool are_plain = inputs[i].size() == 0 || inputs[i].shape(2) == 1 || inputs[i].strides()[2] == 1;
            require(are_plain, kNames[i], "has rows whose elements do not lie side by side");
        }
    }

    static const float* at(const mx::array& array, int64_t batch, int64_t column) {
        return array.data<float>() + batch * array.strides()[0] + column;
    }

    bool is_like(const RowAttention& other) const { return num_heads_ == other.num_heads_ && scale_ == other.scale_; }

    int num_heads_;
    float scale_;
};

class CpuFullAttention : public RowAttention {
  public:
    using RowAttention::RowAttention;

    /// inputs: queries, keys, values
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        check(inputs);
        const mx::Shape& shape = inputs[0].shape();
        int64_t width = shape[2] / num_heads_;
        std::vector<FullHead> heads;
        for (int64_t batch = 0; batch < shape[0]; ++batch) {
            for (int64_t head = 0; head < num_heads_; ++head) {
                heads.push_back({at(inputs[0], batch, head * width),
                                 inputs[0].strides()[1],
                                 at(inputs[1], batch, head * width),
                                 inputs[1].strides()[1],
                                 at(inputs[2], batch, head * width),
                                 inputs[2].strides()[1],
                                 outputs[0].data<float>() + batch * shape[1] * shape[2] + head * width,
                                 shape[2]});
            }
        }
        FullSizes sizes{shape[1], inputs[1].shape(1), width, scale_};
        return [heads = std::move(heads), sizes] { attend(heads, sizes); };
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return is_like(static_cast<const CpuFullAttention&>(other));
    }

    DEFINE_NAME(CpuFullAttention)
};

class CpuHeadAttention : public RowAttention {
  public:
    CpuHeadAttention(int num_heads, float scale, bool is_causal)
        : RowAttention(num_heads, scale), is_causal_(is_causal) {}

    /// inputs: queries, keys, values
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        check(inputs);
        const mx::Shape& shape = inputs[0].shape();
        int64_t width = shape[2] / num_heads_;
        auto blocks_of = [&](const mx::array& array, int64_t batch) {
            int64_t row = array.strides()[1];
            return KeyBlocks{at(array, batch, 0), {width, row}, kBlockKeys * row, nullptr};
        };
        std::vector<Attention> sequences;
        for (int64_t batch = 0; batch < shape[0]; ++batch) {
            sequences.push_back({at(inputs[0], batch, 0),
                                 {width, inputs[0].strides()[1]},
                                 blocks_of(inputs[1], batch),
                                 blocks_of(inputs[2], batch),
                                 outputs[0].data<float>() + batch * shape[1] * shape[2],
                                 num_heads_,
                                 num_heads_,
                                 shape[1],
                                 inputs[1].shape(1),
                                 width,
                                 scale_,
                                 is_causal_,
                                 0});
        }
        return [sequences = std::move(sequences)] { attend(sequences); };
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& attention = static_cast<const CpuHeadAttention&>(other);
        return is_like(attention) && is_causal_ == attention.is_causal_;
    }

    DEFINE_NAME(CpuHeadAttention)

  private:
    bool is_causal_;
};

void check(const mx::array& queries, const mx::array& keys, const mx::array& values, int num_heads) {
    const mx::array* operands[] = {&queries, &keys, &values};
    for (int i = 0; i < 3; ++i) {
        require_float32(*operands[i], kNames[i]);
        require(operands[i]->ndim() == 3, kNames[i], "has not three dimensions");
    }
    require(num_heads > 0 && queries.shape(2) % num_heads == 0, "queries", "is not as wide as some heads");
    bool fits = keys.shape(0) == queries.shape(0) && keys.shape(2) == queries.shape(2);
    require(fits, "keys", "has not the batches or the width of queries");
    require(values.shape() == keys.shape(), "values", "has not the shape of keys");
}

}  // namespace

mx::array full_attention(
    const mx::array& queries, const mx::array& keys, const mx::array& values, int num_heads, float scale) {
    check(queries, keys, values, num_heads);
    require(keys.shape(1) > 0, "keys", "has no rows");
    return made_by(std::make_shared<CpuFullAttention>(num_heads, scale), {queries, keys, values});
}

mx::array head_attention(const mx::array& queries,
                         const mx::array& keys,
                         const mx::array& values,
                         int num_heads,
                         float scale,
                         bool is_causal) {
    check(queries, keys, values, num_heads);
    require(keys.shape(1) >= (is_causal ? queries.shape(1) : 1), "keys", "has fewer rows than a query sees");
    return made_by(std::make_shared<CpuHeadAttention>(num_heads, scale, is_causal), {queries, keys, values});
}

}  // namespace pomona
