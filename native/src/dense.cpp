#include "dense.h"

#include <memory>
#include <utility>

#include "linear.h"

namespace pomona {

namespace mx = mlx::core;

void check_dense(const mx::array& weight, const char* operand) {
    bool is_known = weight.dtype() == mx::float32 || weight.dtype() == mx::bfloat16 || weight.dtype() == mx::float16;
    require(is_known, operand, "is not of float32, bfloat16 or float16");
    require(weight.ndim() == 2, operand, "has the wrong number of dimensions");
    if (weight.is_available()) {
        require_contiguous(weight, operand);
    }
}

DenseMatrix dense_matrix(const mx::array& weight, const char* operand) {
    require_contiguous(weight, operand);
    FloatType type = weight.dtype() == mx::float32    ? FloatType::float32
                     : weight.dtype() == mx::bfloat16 ? FloatType::bfloat16
                                                      : FloatType::float16;
    return {weight.data<uint8_t>(), type, weight.shape(0), weight.shape(1)};
}

namespace {

mx::Shape shape_of_product(const mx::array& x, const mx::array& weight) {
    mx::Shape shape = x.shape();
    shape.back() = weight.shape(0);
    return shape;
}

/// What the primitives share: nothing but their inputs sets one apart from another.
class Dense : public CpuPrimitive {
  public:
    bool is_equivalent(const mx::Primitive&) const override { return true; }
};

class Linears : public Dense {
  public:
    /// inputs: x, then the weights
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        std::vector<DenseMatrix> matrices;
        std::vector<float*> results;
        for (size_t i = 0; i < outputs.size(); ++i) {
            matrices.push_back(dense_matrix(inputs[1 + i], "weight"));
            results.push_back(outputs[i].data<float>());
        }
        return [rows = rows_of(inputs[0]), matrices = std::move(matrices), results = std::move(results)] {
            multiply(rows, matrices, results);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        std::vector<mx::Shape> shapes;
        for (size_t i = 1; i < inputs.size(); ++i) {
            shapes.push_back(shape_of_product(inputs[0], inputs[i]));
        }
        return shapes;
    }

    DEFINE_NAME(Linears)
};

class LinearAndAdd : public Dense {
  public:
    /// inputs: x, weight, addend
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [rows = rows_of(inputs[0]),
                matrix = dense_matrix(inputs[1], "weight"),
                addend = rows_of(inputs[2]),
                y = outputs[0].data<float>()] { multiply_and_add(rows, matrix, addend, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[2].shape()}; }

    DEFINE_NAME(LinearAndAdd)
};

class LinearSwiglu : public Dense {
  public:
    /// inputs: x, gate, up
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [rows = rows_of(inputs[0]),
                gate = dense_matrix(inputs[1], "gate"),
                up = dense_matrix(inputs[2], "up"),
                y = outputs[0].data<float>()] { multiply_swiglu(rows, gate, up, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {shape_of_product(inputs[0], inputs[1])};
    }

    DEFINE_NAME(LinearSwiglu)
};

class DenseRows : public Dense {
  public:
    /// inputs: weight, indices
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [matrix = dense_matrix(inputs[0], "weight"),
                indices = indices_of(inputs[1]),
                values = outputs[0].data<float>()] {
            expand_rows(matrix, indices.checked(matrix.rows, "indices"), values);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[1].shape();
        shape.push_back(inputs[0].shape(1));
        return {shape};
    }

    DEFINE_NAME(DenseRows)
};

}  // namespace

std::vector<mx::array> linears(const mx::array& x, const std::vector<mx::array>& weights) {
    std::vector<mx::array> inputs{x};
    for (const mx::array& weight : weights) {
        check_dense(weight, "weight");
        require_columns(x, weight.shape(1));
        inputs.push_back(weight);
    }
    auto operation = std::make_shared<Linears>();
    std::vector<mx::Shape> shapes = operation->output_shapes(inputs);
    std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
    return mx::array::make_arrays(std::move(shapes), dtypes, operation, inputs);
}

mx::array linear_and_add(const mx::array& x, const mx::array& weight, const mx::array& addend) {
    check_dense(weight, "weight");
    require_columns(x, weight.shape(1));
    require_float32(addend, "addend");
    require(addend.shape() == shape_of_product(x, weight), "addend", "has not the shape of the product");
    return made_by(std::make_shared<LinearAndAdd>(), {x, weight, addend});
}

mx::array linear_swiglu(const mx::array& x, const mx::array& gate, const mx::array& up) {
    check_dense(gate, "gate");
    check_dense(up, "up");
    require_columns(x, gate.shape(1));
    require(gate.shape() == up.shape(), "up", "has not the shape of gate");
    return made_by(std::make_shared<LinearSwiglu>(), {x, gate, up});
}

mx::array rows(const mx::array& weight, const mx::array& indices) {
    check_dense(weight, "weight");
    return made_by(std::make_shared<DenseRows>(), {weight, plain_indices(indices, "indices")});
}

}  // namespace pomona
