#include "low_rank.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "dense.h"
#include "linear.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

int64_t num_rows(const mx::array& x) {
    return static_cast<int64_t>(x.size() / x.shape(-1));
}

std::vector<int64_t> every_row(const mx::array& x) {
    std::vector<int64_t> rows(num_rows(x));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

class AddLowRank : public CpuPrimitive {
  public:
    AddLowRank(std::vector<float> scales, std::vector<ChosenRows> rows)
        : scales_(std::move(scales)), rows_(std::move(rows)) {}

    /// inputs: x, addend, then the two matrices of each product
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        std::vector<LowRank> parts;
        for (size_t i = 0; i < scales_.size(); ++i) {
            parts.push_back({dense_matrix(inputs[2 + 2 * i], "down"),
                             dense_matrix(inputs[3 + 2 * i], "up"),
                             scales_[i],
                             rows_[i] ? *rows_[i] : every_row(inputs[0])});
        }
        return [x = rows_of(inputs[0]),
                addend = rows_of(inputs[1]),
                width = inputs[1].shape(-1),
                parts = std::move(parts),
                y = outputs[0].data<float>()] { add_low_rank(x, parts, addend, width, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[1].shape()}; }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& same = static_cast<const AddLowRank&>(other);
        return scales_ == same.scales_ && rows_ == same.rows_;
    }

    DEFINE_NAME(AddLowRank)

  private:
    std::vector<float> scales_;
    std::vector<ChosenRows> rows_;
};

void check_rows(const std::vector<ChosenRows>& rows, int64_t count) {
    std::vector<bool> taken(count);
    for (const ChosenRows& part : rows) {
        require(part || rows.size() == 1, "rows", "name one row twice");
        for (int64_t row : part.value_or(std::vector<int64_t>())) {
            require(row >= 0 && row < count, "rows", "name a row that x has not");
            require(!taken[row], "rows", "name one row twice");
            taken[row] = true;
        }
    }
}

}  // namespace

mx::array add_low_rank_products(const mx::array& x,
                                const mx::array& addend,
                                const std::vector<Narrow>& matrices,
                                const std::vector<float>& scales,
                                const std::vector<ChosenRows>& rows) {
    require_float32(x, "x");
    require_float32(addend, "addend");
    require(x.ndim() > 0 && x.shape(-1) > 0, "x", "has no columns");
    require(addend.ndim() == x.ndim(), "addend", "has not the dimensions of x");
    require(
        std::equal(x.shape().begin(), x.shape().end() - 1, addend.shape().begin()), "addend", "has not the rows of x");
    require(
        scales.size() == matrices.size() && rows.size() == matrices.size(), "matrices", "are not as many as scales");
    check_rows(rows, num_rows(x));
    std::vector<mx::array> inputs{x, addend};
    for (const auto& [down, up] : matrices) {
        check_dense(down, "down");
        check_dense(up, "up");
        require(down.shape(1) == x.shape(-1), "down", "has not the columns of x");
        require(up.shape(1) == addend.shape(-1), "up", "has not the columns of addend");
        require(down.shape(0) == up.shape(0) && down.shape(0) > 0, "up", "has not the rank of down");
        inputs.push_back(down);
        inputs.push_back(up);
    }
    return made_by(std::make_shared<AddLowRank>(scales, rows), inputs);
}

}  // namespace pomona
