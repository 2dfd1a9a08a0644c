#include "experts.h"

#include <memory>
#include <utility>

namespace pomona {

namespace mx = mlx::core;

namespace {

class ChooseExperts : public CpuPrimitive {
  public:
    ChooseExperts(int num_chosen, Sharing sharing) : num_chosen_(num_chosen), sharing_(sharing) {}

    /// inputs: logits, and scale where there is one
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        const float* scale = nullptr;
        if (inputs.size() > 1) {
            require_contiguous(inputs[1], "scale");
            scale = inputs[1].data<float>();
        }
        return [logits = rows_of(inputs[0]),
                num_experts = inputs[0].shape(-1),
                num_chosen = num_chosen_,
                sharing = sharing_,
                scale,
                numbers = outputs[0].data<int32_t>(),
                shares = outputs[1].data<float>()] {
            choose_experts(logits, num_experts, num_chosen, sharing, scale, numbers, shares);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[0].shape();
        shape.back() = num_chosen_;
        return {shape, shape};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& choice = static_cast<const ChooseExperts&>(other);
        return num_chosen_ == choice.num_chosen_ && sharing_ == choice.sharing_;
    }

    DEFINE_NAME(ChooseExperts)

  private:
    int num_chosen_;
    Sharing sharing_;
};

class Mix : public CpuPrimitive {
  public:
    /// inputs: answers, shares
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [answers = rows_of(inputs[0]),
                shares = rows_of(inputs[1]),
                num_chosen = inputs[1].shape(-1),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { mix(answers, shares, num_chosen, width, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[1].shape();
        shape.back() = inputs[0].shape(-1);
        return {shape};
    }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(Mix)
};

class SigmoidGate : public CpuPrimitive {
  public:
    /// inputs: x, gate
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_of(inputs[0]),
                gate = rows_of(inputs[1]),
                gate_width = inputs[1].shape(-1),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { gate_by_sigmoid(x, gate, gate_width, width, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(SigmoidGate)
};

void check_weights(const mx::array& x, const mx::array& weights, const char* operand) {
    mx::Dtype dtype = weights.dtype();
    bool is_known = dtype == mx::float32 || dtype == mx::bfloat16 || dtype == mx::float16;
    require(is_known, operand, "is not of float32, bfloat16 or float16");
    require(weights.ndim() == 3, operand, "has the wrong number of dimensions");
    require_columns(x, weights.shape(2));
    if (weights.is_available()) {
        require_contiguous(weights, operand);
    }
}

/// The first of several matrices.
DenseMatrix first_of(const mx::array& weights, const char* operand) {
    require_contiguous(weights, operand);
    FloatType type = weights.dtype() == mx::float32    ? FloatType::float32
                     : weights.dtype() == mx::bfloat16 ? FloatType::bfloat16
                                                       : FloatType::float16;
    return {weights.data<uint8_t>(), type, weights.shape(1), weights.shape(2)};
}

class GatherLinear : public CpuPrimitive {
  public:
    /// inputs: x, weights, choices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_for_choices(inputs[0], inputs[2]),
                first = first_of(inputs[1], "weights"),
                choices = indices_of(inputs[2]),
                bound = static_cast<int64_t>(inputs[1].shape(0)),
                y = outputs[0].data<float>()] {
            multiply_chosen(x, first, {choices.checked(bound, "choices"), bound}, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {shape_of_answers(inputs[2], inputs[1].shape(1))};
    }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(GatherLinear)
};

class GatherGated : public CpuPrimitive {
  public:
    explicit GatherGated(Gate join) : join_(join) {}

    /// inputs: x, gate, up, choices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_for_choices(inputs[0], inputs[3]),
                gate = first_of(inputs[1], "gate"),
                up = first_of(inputs[2], "up"),
                join = join_,
                choices = indices_of(inputs[3]),
                bound = static_cast<int64_t>(inputs[1].shape(0)),
                y = outputs[0].data<float>()] {
            multiply_chosen_gated(x, gate, up, join, {choices.checked(bound, "choices"), bound}, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {shape_of_answers(inputs[3], inputs[1].shape(1))};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return join_ == static_cast<const GatherGated&>(other).join_;
    }

    DEFINE_NAME(GatherGated)

  private:
    Gate join_;
};

}  // namespace

std::vector<mx::array> choose_experts(const mx::array& logits,
                                      int num_chosen,
                                      Sharing sharing,
                                      const std::optional<mx::array>& scale) {
    require_float32(logits, "logits");
    require(logits.ndim() > 0, "logits", "has no dimensions");
    require(num_chosen > 0 && num_chosen <= logits.shape(-1), "logits", "has not so many columns");
    std::vector<mx::array> inputs{logits};
    if (scale) {
        require_float32(*scale, "scale");
        require(scale->shape() == mx::Shape{logits.shape(-1)}, "scale", "has not one element for each expert");
        inputs.push_back(*scale);
    }
    auto operation = std::make_shared<ChooseExperts>(num_chosen, sharing);
    std::vector<mx::Shape> shapes = operation->output_shapes(inputs);
    return mx::array::make_arrays(std::move(shapes), {mx::int32, mx::float32}, operation, inputs);
}

mx::array mix(const mx::array& answers, const mx::array& shares) {
    require_float32(answers, "answers");
    require_float32(shares, "shares");
    require(answers.ndim() > 1, "answers", "has fewer than two dimensions");
    mx::Shape lists(answers.shape().begin(), answers.shape().end() - 1);
    require(shares.shape() == lists && lists.back() > 0, "shares", "has not one element for each answer");
    return made_by(std::make_shared<Mix>(), {answers, shares});
}

mx::array sigmoid_gate(const mx::array& x, const mx::array& gate) {
    require_float32(x, "x");
    require_float32(gate, "gate");
    require(x.ndim() > 0, "x", "has no dimensions");
    mx::Shape single = x.shape();
    single.back() = 1;
    require(gate.shape() == x.shape() || gate.shape() == single, "gate", "has not the shape of x, nor one column");
    return made_by(std::make_shared<SigmoidGate>(), {x, gate});
}

mx::array gather_linear(const mx::array& x, const mx::array& weights, const mx::array& choices) {
    check_weights(x, weights, "weights");
    check_choices(x, choices);
    return made_by(std::make_shared<GatherLinear>(), {x, weights, plain_indices(choices, "choices")});
}

mx::array gather_gated(
    const mx::array& x, const mx::array& gate, const mx::array& up, const mx::array& choices, Gate join) {
    check_weights(x, gate, "gate");
    check_weights(x, up, "up");
    require(gate.shape() == up.shape(), "up", "has not the shape of gate");
    check_choices(x, choices);
    return made_by(std::make_shared<GatherGated>(join), {x, gate, up, plain_indices(choices, "choices")});
}

}  // namespace pomona
