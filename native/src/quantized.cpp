#include "quantized.h"

#include <limits>
#include <memory>
#include <utility>

#include "linear.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

constexpr int kWordBits = 32;
constexpr int kArraysOfMatrix = 3;

bool is_known(Quantization quantization) {
    auto [group_size, bits] = quantization;
    bool knows_bits = (bits >= 2 && bits <= 6) || bits == 8;
    return knows_bits && (group_size == 32 || group_size == 64 || group_size == 128);
}

bool is_scale_dtype(mx::Dtype dtype) {
    return dtype == mx::float32 || dtype == mx::bfloat16 || dtype == mx::float16;
}

void check_layouts(const mx::array& codes, const mx::array& scales, const mx::array& biases) {
    require_contiguous(codes, "codes");
    require_contiguous(scales, "scales");
    require_contiguous(biases, "biases");
}

/// @return the number of columns.
int64_t check_matrix(const QuantizedArrays& matrix, Quantization quantization, size_t num_dimensions) {
    const auto& [codes, scales, biases] = matrix;
    if (!is_known(quantization)) {
        throw QuantizationUnsupported(quantization.bits, quantization.group_size);
    }
    require(codes.dtype() == mx::uint32, "codes", "is not of uint32");
    require(codes.ndim() == num_dimensions, "codes", "has the wrong number of dimensions");
    int64_t row_bits = static_cast<int64_t>(codes.shape(-1)) * kWordBits;
    int64_t columns = row_bits / quantization.bits;
    bool is_whole = columns * quantization.bits == row_bits && columns % quantization.group_size == 0;
    require(is_whole && columns <= std::numeric_limits<mx::ShapeElem>::max(),
            "codes",
            "has rows that are no whole number of groups");
    mx::Shape groups = codes.shape();
    groups.back() = static_cast<mx::ShapeElem>(columns / quantization.group_size);
    require(scales.shape() == groups, "scales", "has not one element for each group of codes");
    require(biases.shape() == groups, "biases", "has not one element for each group of codes");
    require(is_scale_dtype(scales.dtype()), "scales", "is not of float32, bfloat16 or float16");
    require(biases.dtype() == scales.dtype(), "biases", "is not of the dtype of scales");
    if (codes.is_available() && scales.is_available() && biases.is_available()) {
        check_layouts(codes, scales, biases);
    }
    return columns;
}

/// What the primitives share: the format of the matrices.
class Quantized : public CpuPrimitive {
  public:
    explicit Quantized(Quantization quantization) : quantization_(quantization) {}

    bool is_equivalent(const mx::Primitive& other) const override {
        const Quantization& quantization = static_cast<const Quantized&>(other).quantization_;
        return quantization_.bits == quantization.bits && quantization_.group_size == quantization.group_size;
    }

  protected:
    /// The matrix whose codes, scales and biases are the inputs from number `first` on.
    QuantizedMatrix matrix_of(const std::vector<mx::array>& inputs, size_t first) const {
        const mx::array& codes = inputs[first];
        const mx::array& scales = inputs[first + 1];
        const mx::array& biases = inputs[first + 2];
        check_layouts(codes, scales, biases);
        FloatType type = scales.dtype() == mx::float32    ? FloatType::float32
                         : scales.dtype() == mx::bfloat16 ? FloatType::bfloat16
                                                          : FloatType::float16;
        int64_t columns = static_cast<int64_t>(codes.shape(-1)) * kWordBits / quantization_.bits;
        return {codes.data<uint8_t>(),
                scales.data<char>(),
                biases.data<char>(),
                type,
                codes.shape(-2),
                columns,
                quantization_.group_size,
                quantization_.bits};
    }

    Quantization quantization_;
};

class QuantizedLinears : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, then codes, scales and biases of each matrix
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        std::vector<QuantizedMatrix> matrices;
        std::vector<float*> results;
        for (size_t i = 0; i < outputs.size(); ++i) {
            matrices.push_back(matrix_of(inputs, 1 + kArraysOfMatrix * i));
            results.push_back(outputs[i].data<float>());
        }
        return [rows = rows_of(inputs[0]), matrices = std::move(matrices), results = std::move(results)] {
            multiply(rows, matrices, results);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        std::vector<mx::Shape> shapes;
        for (size_t i = 1; i < inputs.size(); i += kArraysOfMatrix) {
            shapes.push_back(inputs[0].shape());
            shapes.back().back() = inputs[i].shape(-2);
        }
        return shapes;
    }

    DEFINE_NAME(QuantizedLinears)
};

class QuantizedLinearAndAdd : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, codes, scales, biases, addend
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [rows = rows_of(inputs[0]),
                matrix = matrix_of(inputs, 1),
                addend = rows_of(inputs[1 + kArraysOfMatrix]),
                y = outputs[0].data<float>()] { multiply_and_add(rows, matrix, addend, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[1 + kArraysOfMatrix].shape()};
    }

    DEFINE_NAME(QuantizedLinearAndAdd)
};

class QuantizedSwiglu : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, codes, scales and biases of gate, and of up
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [rows = rows_of(inputs[0]),
                gate = matrix_of(inputs, 1),
                up = matrix_of(inputs, 1 + kArraysOfMatrix),
                y = outputs[0].data<float>()] { multiply_swiglu(rows, gate, up, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[0].shape();
        shape.back() = inputs[1].shape(-2);
        return {shape};
    }

    DEFINE_NAME(QuantizedSwiglu)
};

class GatherQuantizedLinear : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, codes, scales, biases, choices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_for_choices(inputs[0], inputs[4]),
                first = matrix_of(inputs, 1),
                choices = indices_of(inputs[4]),
                bound = static_cast<int64_t>(inputs[1].shape(0)),
                y = outputs[0].data<float>()] {
            multiply_chosen(x, first, {choices.checked(bound, "choices"), bound}, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {shape_of_answers(inputs[4], inputs[1].shape(-2))};
    }

    DEFINE_NAME(GatherQuantizedLinear)
};

class GatherQuantizedGated : public Quantized {
  public:
    GatherQuantizedGated(Quantization quantization, Gate join) : Quantized(quantization), join_(join) {}

    /// inputs: x, codes, scales and biases of gate, and of up, choices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        const mx::array& choices = inputs.back();
        return [x = rows_for_choices(inputs[0], choices),
                gate = matrix_of(inputs, 1),
                up = matrix_of(inputs, 1 + kArraysOfMatrix),
                join = join_,
                choices = indices_of(choices),
                bound = static_cast<int64_t>(inputs[1].shape(0)),
                y = outputs[0].data<float>()] {
            multiply_chosen_gated(x, gate, up, join, {choices.checked(bound, "choices"), bound}, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {shape_of_answers(inputs.back(), inputs[1].shape(-2))};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        return Quantized::is_equivalent(other) && join_ == static_cast<const GatherQuantizedGated&>(other).join_;
    }

    DEFINE_NAME(GatherQuantizedGated)

  private:
    Gate join_;
};

class QuantizedRows : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: codes, scales, biases, indices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [matrix = matrix_of(inputs, 0), indices = indices_of(inputs[3]), values = outputs[0].data<float>()] {
            expand_rows(matrix, indices.checked(matrix.rows, "indices"), values);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        int64_t columns = static_cast<int64_t>(inputs[0].shape(-1)) * kWordBits / quantization_.bits;
        mx::Shape shape = inputs[3].shape();
        shape.push_back(static_cast<mx::ShapeElem>(columns));
        return {shape};
    }

    DEFINE_NAME(QuantizedRows)
};

void append(std::vector<mx::array>& inputs, const QuantizedArrays& matrix) {
    inputs.insert(inputs.end(), {matrix.codes, matrix.scales, matrix.biases});
}

}  // namespace

std::vector<mx::array> quantized_linears(const mx::array& x,
                                         const std::vector<QuantizedArrays>& matrices,
                                         Quantization quantization) {
    std::vector<mx::array> inputs{x};
    for (const QuantizedArrays& matrix : matrices) {
        require_columns(x, check_matrix(matrix, quantization, 2));
        append(inputs, matrix);
    }
    auto operation = std::make_shared<QuantizedLinears>(quantization);
    std::vector<mx::Shape> shapes = operation->output_shapes(inputs);
    std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
    return mx::array::make_arrays(std::move(shapes), dtypes, operation, inputs);
}

mx::array quantized_linear_and_add(const mx::array& x,
                                   const QuantizedArrays& matrix,
                                   const mx::array& addend,
                                   Quantization quantization) {
    require_columns(x, check_matrix(matrix, quantization, 2));
    mx::Shape shape = x.shape();
    shape.back() = matrix.codes.shape(0);
    require_float32(addend, "addend");
    require(addend.shape() == shape, "addend", "has not the shape of the product");
    std::vector<mx::array> inputs{x};
    append(inputs, matrix);
    inputs.push_back(addend);
    return made_by(std::make_shared<QuantizedLinearAndAdd>(quantization), inputs);
}

mx::array quantized_swiglu(const mx::array& x,
                           const QuantizedArrays& gate,
                           const QuantizedArrays& up,
                           Quantization quantization) {
    require_columns(x, check_matrix(gate, quantization, 2));
    check_matrix(up, quantization, 2);
    require(gate.codes.shape() == up.codes.shape(), "up", "has not the shape of gate");
    std::vector<mx::array> inputs{x};
    append(inputs, gate);
    append(inputs, up);
    return made_by(std::make_shared<QuantizedSwiglu>(quantization), inputs);
}

mx::array gather_quantized_linear(const mx::array& x,
                                  const QuantizedArrays& matrices,
                                  const mx::array& choices,
                                  Quantization quantization) {
    require_columns(x, check_matrix(matrices, quantization, 3));
    check_choices(x, choices);
    std::vector<mx::array> inputs{x};
    append(inputs, matrices);
    inputs.push_back(plain_indices(choices, "choices"));
    return made_by(std::make_shared<GatherQuantizedLinear>(quantization), inputs);
}

mx::array gather_quantized_gated(const mx::array& x,
                                 const QuantizedArrays& gate,
                                 const QuantizedArrays& up,
                                 const mx::array& choices,
                                 Quantization quantization,
                                 Gate join) {
    require_columns(x, check_matrix(gate, quantization, 3));
    check_matrix(up, quantization, 3);
    require(gate.codes.shape() == up.codes.shape(), "up", "has not the shape of gate");
    check_choices(x, choices);
    std::vector<mx::array> inputs{x};
    append(inputs, gate);
    append(inputs, up);
    inputs.push_back(plain_indices(choices, "choices"));
    return made_by(std::make_shared<GatherQuantizedGated>(quantization, join), inputs);
}

mx::array quantized_rows(const QuantizedArrays& matrix, const mx::array& indices, Quantization quantization) {
    check_matrix(matrix, quantization, 2);
    std::vector<mx::array> inputs;
    append(inputs, matrix);
    inputs.push_back(plain_indices(indices, "indices"));
    return made_by(std::make_shared<QuantizedRows>(quantization), inputs);
}

}  // namespace pomona
