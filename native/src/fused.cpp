#include "fused.h"

#include <memory>
#include <utility>

#include "attention.h"
#include "elements.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

/// A primitive whose output has the shape of its first input.
class SameShape : public CpuPrimitive {
  public:
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive&) const override { return true; }
};

/// The rows of an array, each cut into runs of `width` elements.
Rows runs_of(const mx::array& array, int64_t width) {
    Rows rows = rows_of(array);
    int64_t count = array.shape(-1) / width;
    if (count == 1) {
        return rows;
    }
    std::vector<int64_t> offsets;
    offsets.reserve(rows.offsets.size() * count);
    for (int64_t offset : rows.offsets) {
        for (int64_t run = 0; run < count; ++run) {
            offsets.push_back(offset + run * width * rows.step);
        }
    }
    rows.offsets = std::move(offsets);
    return rows;
}

class RmsNorm : public SameShape {
  public:
    explicit RmsNorm(float epsilon) : epsilon_(epsilon) {}

    /// inputs: x, weight
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_contiguous(inputs[1], "weight");
        return [rows = runs_of(inputs[0], inputs[1].shape(0)),
                weight = inputs[1].data<float>(),
                epsilon = epsilon_,
                width = inputs[1].shape(0),
                y = outputs[0].data<float>()] { normalize(rows, weight, epsilon, width, y); };
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return epsilon_ == static_cast<const RmsNorm&>(other).epsilon_;
    }

    DEFINE_NAME(RmsNorm)

  private:
    float epsilon_;
};

class LayerNorm : public SameShape {
  public:
    explicit LayerNorm(float epsilon) : epsilon_(epsilon) {}

    /// inputs: x, weight, bias
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_contiguous(inputs[1], "weight");
        require_contiguous(inputs[2], "bias");
        return [rows = rows_of(inputs[0]),
                weight = inputs[1].data<float>(),
                bias = inputs[2].data<float>(),
                epsilon = epsilon_,
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { center(rows, weight, bias, epsilon, width, y); };
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return epsilon_ == static_cast<const LayerNorm&>(other).epsilon_;
    }

    DEFINE_NAME(LayerNorm)

  private:
    float epsilon_;
};

class Gelu : public SameShape {
  public:
    /// inputs: x
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [rows = rows_of(inputs[0]), width = inputs[0].shape(-1), y = outputs[0].data<float>()] {
            find_gelu(rows, width, y);
        };
    }

    DEFINE_NAME(Gelu)
};

class Swiglu : public SameShape {
  public:
    /// inputs: gate, up
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [gate = rows_of(inputs[0]),
                up = rows_of(inputs[1]),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { join_swiglu(gate, up, width, y); };
    }

    DEFINE_NAME(Swiglu)
};

class Add : public SameShape {
  public:
    /// inputs: x, addend
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_of(inputs[0]),
                addend = rows_of(inputs[1]),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { add(x, addend, width, y); };
    }

    DEFINE_NAME(Add)
};

class FindAngles : public CpuPrimitive {
  public:
    explicit FindAngles(float scale) : scale_(scale) {}

    /// inputs: positions, turns
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_contiguous(inputs[0], "positions");
        require_contiguous(inputs[1], "turns");
        return
            [positions = inputs[0].data<int32_t>(),
             count = inputs[0].shape(0),
             scale = scale_,
             turns = inputs[1].data<float>(),
             half = inputs[1].shape(0),
             cosines = outputs[0].data<float>(),
             sines = outputs[1].data<float>()] { find_angles(positions, count, scale, turns, half, cosines, sines); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape{inputs[0].shape(0), inputs[1].shape(0)};
        return {shape, shape};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return scale_ == static_cast<const FindAngles&>(other).scale_;
    }

    DEFINE_NAME(FindAngles)

  private:
    float scale_;
};

/// The rows of angles [tokens, half] or [batches, tokens, half] that belong to the rows of x.
Rows angles_of(const mx::array& angles, const mx::Shape& x) {
    Rows rows = rows_of(angles);
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<size_t>(x[0]) * x[1] * x[2]);
    for (int64_t batch = 0; batch < x[0]; ++batch) {
        int64_t first = angles.ndim() == 3 ? batch * x[2] : 0;
        for (int64_t head = 0; head < x[1]; ++head) {
            offsets.insert(offsets.end(), rows.offsets.begin() + first, rows.offsets.begin() + first + x[2]);
        }
    }
    rows.offsets = std::move(offsets);
    return rows;
}

class Rotate : public SameShape {
  public:
    explicit Rotate(bool is_interleaved) : is_interleaved_(is_interleaved) {}

    /// inputs: x, cosines, sines
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        const mx::Shape& shape = inputs[0].shape();
        return [rows = rows_of(inputs[0]),
                cosines = angles_of(inputs[1], shape),
                sines = angles_of(inputs[2], shape),
                turn = Turn{inputs[1].shape(-1), is_interleaved_},
                width = shape.back(),
                y = outputs[0].data<float>()] { rotate(rows, cosines, sines, turn, width, y); };
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return is_interleaved_ == static_cast<const Rotate&>(other).is_interleaved_;
    }

    DEFINE_NAME(Rotate)

  private:
    bool is_interleaved_;
};

void require_plain_rows(const mx::array& array, const char* operand) {
    require(array.size() == 0 || array.shape(-1) == 1 || array.strides().back() == 1,
            operand,
            "has rows whose elements do not lie side by side");
}

Layout layout_of(const mx::array& array) {
    return {array.strides()[1], array.strides()[2]};
}

KeyBlocks keys_of(const mx::array& array, int64_t batch) {
    Layout layout = layout_of(array);
    return {array.data<float>() + batch * array.strides()[0], layout, kBlockKeys * layout.row, nullptr};
}

class CpuAttention : public CpuPrimitive {
  public:
    CpuAttention(float scale, bool is_causal) : scale_(scale), is_causal_(is_causal) {}

    /// inputs: queries, keys, values
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_plain_rows(inputs[0], "queries");
        require_plain_rows(inputs[1], "keys");
        require_plain_rows(inputs[2], "values");
        const mx::Shape& queries = inputs[0].shape();
        float* y = outputs[0].data<float>();
        std::vector<Attention> sequences;
        for (int64_t batch = 0; batch < queries[0]; ++batch) {
            sequences.push_back({inputs[0].data<float>() + batch * inputs[0].strides()[0],
                                 layout_of(inputs[0]),
                                 keys_of(inputs[1], batch),
                                 keys_of(inputs[2], batch),
                                 y + batch * queries[1] * queries[2] * queries[3],
                                 queries[1],
                                 inputs[1].shape(1),
                                 queries[2],
                                 inputs[1].shape(2),
                                 queries[3],
                                 scale_,
                                 is_causal_,
                                 0});
        }
        return [sequences = std::move(sequences)] { attend(sequences); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        const mx::Shape& queries = inputs[0].shape();
        return {{queries[0], queries[2], queries[1], queries[3]}};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& attention = static_cast<const CpuAttention&>(other);
        return scale_ == attention.scale_ && is_causal_ == attention.is_causal_;
    }

    DEFINE_NAME(CpuAttention)

  private:
    float scale_;
    bool is_causal_;
};

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float epsilon) {
    require_float32(x, "x");
    require_float32(weight, "weight");
    require(x.ndim() > 0, "x", "has no dimensions");
    require(weight.ndim() == 1 && weight.size() > 0 && x.shape(-1) % weight.shape(0) == 0,
            "weight",
            "has not one element for each of a row of x, or of equal runs of it");
    return made_by(std::make_shared<RmsNorm>(epsilon), {x, weight});
}

mx::array layer_norm(const mx::array& x, const mx::array& weight, const mx::array& bias, float epsilon) {
    require_float32(x, "x");
    require_float32(weight, "weight");
    require_float32(bias, "bias");
    require(x.ndim() > 0, "x", "has no dimensions");
    require(weight.shape() == mx::Shape{x.shape(-1)}, "weight", "has not one element for each of a row of x");
    require(bias.shape() == weight.shape(), "bias", "has not one element for each of a row of x");
    return made_by(std::make_shared<LayerNorm>(epsilon), {x, weight, bias});
}

mx::array gelu(const mx::array& x) {
    require_float32(x, "x");
    require(x.ndim() > 0, "x", "has no dimensions");
    return made_by(std::make_shared<Gelu>(), {x});
}

mx::array swiglu(const mx::array& gate, const mx::array& up) {
    require_float32(gate, "gate");
    require_float32(up, "up");
    require(gate.ndim() > 0, "gate", "has no dimensions");
    require(gate.shape() == up.shape(), "up", "has not the shape of gate");
    return made_by(std::make_shared<Swiglu>(), {gate, up});
}

mx::array add(const mx::array& x, const mx::array& addend) {
    require_float32(x, "x");
    require_float32(addend, "addend");
    require(x.ndim() > 0, "x", "has no dimensions");
    bool fits = addend.shape() == x.shape() || addend.shape() == mx::Shape{x.shape(-1)};
    require(fits, "addend", "has neither the shape of x nor that of a row of it");
    return made_by(std::make_shared<Add>(), {x, addend});
}

std::vector<mx::array> angles(const mx::array& positions, const mx::array& turns, float scale) {
    require(positions.dtype() == mx::int32, "positions", "is not of int32");
    require(positions.ndim() == 1, "positions", "has not one dimension");
    require_float32(turns, "turns");
    require(turns.ndim() == 1, "turns", "has not one dimension");
    auto operation = std::make_shared<FindAngles>(scale);
    std::vector<mx::Shape> shapes = operation->output_shapes({positions, turns});
    return mx::array::make_arrays(std::move(shapes), {mx::float32, mx::float32}, operation, {positions, turns});
}

mx::array rotate(const mx::array& x, const mx::array& cosines, const mx::array& sines, bool is_interleaved) {
    require_float32(x, "x");
    require_float32(cosines, "cosines");
    require_float32(sines, "sines");
    require(x.ndim() == 4, "x", "has not four dimensions");
    require(sines.shape() == cosines.shape(), "sines", "has not the shape of cosines");
    mx::Shape angles = cosines.shape();
    require(angles.size() == 2 || angles.size() == 3, "cosines", "has neither two dimensions nor three");
    mx::Shape expected{x.shape(0), x.shape(2), angles.back()};
    require(angles.size() == 2 ? angles[0] == x.shape(2) : angles == expected,
            "cosines",
            "has not one row for each token of x");
    require(2 * static_cast<int64_t>(angles.back()) <= x.shape(3), "cosines", "is wider than half of x");
    return made_by(std::make_shared<Rotate>(is_interleaved), {x, cosines, sines});
}

mx::array attention(
    const mx::array& queries, const mx::array& keys, const mx::array& values, float scale, bool is_causal) {
    require_float32(queries, "queries");
    require_float32(keys, "keys");
    require_float32(values, "values");
    require(queries.ndim() == 4, "queries", "has not four dimensions");
    require(keys.ndim() == 4, "keys", "has not four dimensions");
    require(values.shape() == keys.shape(), "values", "has not the shape of keys");
    bool fits = keys.shape(0) == queries.shape(0) && keys.shape(3) == queries.shape(3) && keys.shape(1) > 0 &&
                queries.shape(1) % keys.shape(1) == 0;
    require(fits, "keys", "has not the batches, the width or a divisor of the heads of queries");
    int least = is_causal ? queries.shape(2) : 1;
    require(keys.shape(2) >= least, "keys", "has fewer rows than a query sees");
    return made_by(std::make_shared<CpuAttention>(scale, is_causal), {queries, keys, values});
}

}  // namespace pomona
