#include "blend.h"

#include <memory>

#include "elements.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

class Geglu : public CpuPrimitive {
  public:
    /// inputs: gate, up
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [gate = rows_of(inputs[0]),
                up = rows_of(inputs[1]),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { join_geglu(gate, up, width, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(Geglu)
};

/// The rows of a factor; a single number stands for every element.
Rows factors_of(const mx::array& factor) {
    Rows rows = rows_of(factor);
    if (factor.size() == 1) {
        rows.step = 0;
    }
    return rows;
}

class Multiply : public CpuPrimitive {
  public:
    /// inputs: x, factor
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_of(inputs[0]),
                factor = factors_of(inputs[1]),
                width = inputs[0].shape(-1),
                y = outputs[0].data<float>()] { multiply_rows(x, factor, width, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(Multiply)
};

class Columns : public CpuPrimitive {
  public:
    Columns(int begin, int count) : begin_(begin), count_(count) {}

    /// inputs: x
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        Rows rows = rows_of(inputs[0]);
        for (int64_t& offset : rows.offsets) {
            offset += begin_ * rows.step;
        }
        return [rows = std::move(rows), count = count_, y = outputs[0].data<float>()] { copy_rows(rows, count, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[0].shape();
        shape.back() = count_;
        return {shape};
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& columns = static_cast<const Columns&>(other);
        return begin_ == columns.begin_ && count_ == columns.count_;
    }

    DEFINE_NAME(Columns)

  private:
    int begin_;
    int count_;
};

class SoftBound : public CpuPrimitive {
  public:
    explicit SoftBound(float bound) : bound_(bound) {}

    /// inputs: x
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [x = rows_of(inputs[0]), bound = bound_, width = inputs[0].shape(-1), y = outputs[0].data<float>()] {
            bound_softly(x, bound, width, y);
        };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive& other) const override {
        return bound_ == static_cast<const SoftBound&>(other).bound_;
    }

    DEFINE_NAME(SoftBound)

  private:
    float bound_;
};

void require_rows(const mx::array& array, const char* operand) {
    require_float32(array, operand);
    require(array.ndim() > 0, operand, "has no dimensions");
}

}  // namespace

mx::array geglu(const mx::array& gate, const mx::array& up) {
    require_rows(gate, "gate");
    require_float32(up, "up");
    require(gate.shape() == up.shape(), "up", "has not the shape of gate");
    return made_by(std::make_shared<Geglu>(), {gate, up});
}

mx::array multiply(const mx::array& x, const mx::array& factor) {
    require_rows(x, "x");
    require_float32(factor, "factor");
    bool fits =
        factor.shape() == x.shape() || factor.shape() == mx::Shape{x.shape(-1)} || factor.shape() == mx::Shape{1};
    require(fits, "factor", "has neither the shape of x nor that of a row or an element of it");
    return made_by(std::make_shared<Multiply>(), {x, factor});
}

mx::array columns(const mx::array& x, int begin, int count) {
    require_rows(x, "x");
    bool fits = begin >= 0 && count > 0 && begin <= x.shape(-1) - count;
    require(fits, "x", "has not so many columns");
    return made_by(std::make_shared<Columns>(begin, count), {x});
}

mx::array soft_bound(const mx::array& x, float bound) {
    require_rows(x, "x");
    require(bound > 0.0f, "bound", "is not over 0");
    return made_by(std::make_shared<SoftBound>(bound), {x});
}

}  // namespace pomona
