#include "recurrent.h"

#include <memory>
#include <numeric>

#include "delta.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

/// Inputs before the states.
constexpr size_t kOperands = 6;

using Pieces = std::vector<std::vector<int>>;

mx::Shape seen_shape(const DeltaSizes& sizes) {
    return {1, static_cast<int>(sizes.taps - 1), static_cast<int>(sizes.channels())};
}

mx::Shape memory_shape(const DeltaSizes& sizes) {
    return {1, static_cast<int>(sizes.value_heads), static_cast<int>(sizes.value_dim), static_cast<int>(sizes.key_dim)};
}

class RunDelta : public CpuPrimitive {
  public:
    RunDelta(const DeltaSizes& sizes, Pieces pieces) : sizes_(sizes), pieces_(std::move(pieces)) {}

    /// inputs: those of GatedDelta in their order, then what each row has seen and remembers
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        for (const mx::array& input : inputs) {
            require_contiguous(input, "an operand");
        }
        DeltaOperands operands{inputs[0].data<float>(),
                               inputs[1].data<float>(),
                               inputs[2].data<float>(),
                               inputs[3].data<float>(),
                               inputs[4].data<float>(),
                               inputs[5].data<float>()};
        return [sizes = sizes_, operands, rows = rows_of_step(inputs, outputs), y = outputs[0].data<float>()] {
            run_delta(sizes, operands, rows, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        std::vector<mx::Shape> shapes{{1, inputs[0].shape(1), static_cast<int>(sizes_.value_width())}};
        for (const std::vector<int>& row : pieces_) {
            for (size_t piece = 0; piece < row.size(); ++piece) {
                shapes.push_back(seen_shape(sizes_));
                shapes.push_back(memory_shape(sizes_));
            }
        }
        return shapes;
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return pieces_ == static_cast<const RunDelta&>(other).pieces_;
    }

    DEFINE_NAME(GatedDelta)

  private:
    std::vector<DeltaRow> rows_of_step(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const {
        std::vector<DeltaRow> rows;
        int64_t first = 0;
        size_t output = 1;
        for (size_t row = 0; row < pieces_.size(); ++row) {
            const size_t state = kOperands + 2 * row;
            rows.push_back({first, inputs[state].data<float>(), inputs[state + 1].data<float>(), {}});
            for (int count : pieces_[row]) {
                rows.back().pieces.push_back({count, outputs[output].data<float>(), outputs[output + 1].data<float>()});
                output += 2;
                first += count;
            }
        }
        return rows;
    }

    DeltaSizes sizes_;
    Pieces pieces_;
};

/// The sizes that the shapes of the operands say; what does not fit them is found by `require_fit`.
DeltaSizes sizes_of(const GatedDelta& operands, const mx::array& memory) {
    require(memory.ndim() == 4 && memory.size() > 0, "memory", "has not four dimensions");
    require(operands.convolution.ndim() == 2, "convolution", "has not two dimensions");
    DeltaSizes sizes{};
    sizes.value_heads = memory.shape(1);
    sizes.value_dim = memory.shape(2);
    sizes.key_dim = memory.shape(3);
    sizes.taps = operands.convolution.shape(0);
    int64_t both = operands.convolution.shape(1) - sizes.value_width();
    sizes.key_heads = both / (2 * sizes.key_dim);
    bool fits = both > 0 && both % (2 * sizes.key_dim) == 0 && sizes.value_heads % sizes.key_heads == 0;
    require(fits && sizes.taps > 0, "convolution", "has not the channels of whole heads");
    return sizes;
}

void require_shape(const mx::array& array, const mx::Shape& shape, const char* operand) {
    require_float32(array, operand);
    require(array.shape() == shape, operand, "has not the shape that the others ask for");
}

void require_fit(const GatedDelta& operands, const DeltaSizes& sizes, int num_tokens) {
    auto heads = static_cast<int>(sizes.value_heads);
    require_float32(operands.convolution, "convolution");
    require_shape(operands.mixed, {1, num_tokens, static_cast<int>(sizes.channels())}, "mixed");
    require_shape(operands.decays, {1, num_tokens, heads}, "decays");
    require_shape(operands.corrections, {1, num_tokens, heads}, "corrections");
    require_shape(operands.decay_rates, {heads}, "decay_rates");
    require_shape(operands.decay_biases, {heads}, "decay_biases");
}

}  // namespace

std::vector<mx::array> gated_delta(const GatedDelta& operands,
                                   const std::vector<DeltaState>& states,
                                   const std::vector<std::vector<int>>& pieces) {
    require(!states.empty() && states.size() == pieces.size(), "states", "are not as many as rows");
    DeltaSizes sizes = sizes_of(operands, states[0].second);
    std::vector<mx::array> inputs{operands.mixed,
                                  operands.decays,
                                  operands.corrections,
                                  operands.convolution,
                                  operands.decay_rates,
                                  operands.decay_biases};
    int num_tokens = 0;
    for (size_t row = 0; row < states.size(); ++row) {
        require_shape(states[row].first, seen_shape(sizes), "seen");
        require_shape(states[row].second, memory_shape(sizes), "memory");
        inputs.push_back(states[row].first);
        inputs.push_back(states[row].second);
        require(!pieces[row].empty(), "pieces", "are none of a row");
        for (int count : pieces[row]) {
            require(count > 0, "pieces", "have one without tokens");
            num_tokens += count;
        }
    }
    require_fit(operands, sizes, num_tokens);
    auto operation = std::make_shared<RunDelta>(sizes, pieces);
    std::vector<mx::Shape> shapes = operation->output_shapes(inputs);
    std::vector<mx::Dtype> types(shapes.size(), mx::float32);
    return mx::array::make_arrays(std::move(shapes), types, operation, inputs);
}

}  // namespace pomona
