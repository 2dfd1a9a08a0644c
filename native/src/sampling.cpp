#include "sampling.h"

#include <memory>
#include <utility>

#include "choice.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

constexpr int kChoiceColumns = sizeof(Choice) / sizeof(float);
static_assert(kChoiceColumns == 7 && alignof(Choice) == alignof(float));

Rows logit_rows(const mx::array& logits) {
    Rows rows = rows_of(logits);
    require(rows.step == 1 || logits.shape(-1) == 1, "logits", "has rows whose elements do not lie side by side");
    return rows;
}

class ChooseTokens : public CpuPrimitive {
  public:
    /// inputs: logits, choices, exempt_ids
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_contiguous(inputs[1], "choices");
        require_contiguous(inputs[2], "exempt_ids");
        return [logits = logit_rows(inputs[0]),
                width = inputs[0].shape(-1),
                choices = reinterpret_cast<const Choice*>(inputs[1].data<float>()),
                exempt_ids = inputs[2].data<int32_t>(),
                num_exempt = inputs[2].shape(-1),
                tokens = outputs[0].data<uint32_t>(),
                normalizers = outputs[1].data<float>()] {
            choose(logits, width, choices, exempt_ids, num_exempt, tokens, normalizers);
        };
    }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(ChooseTokens)
};

class FindTop : public CpuPrimitive {
  public:
    /// inputs: logits
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        return [logits = logit_rows(inputs[0]),
                width = inputs[0].shape(-1),
                count = outputs[0].shape(-1),
                ids = outputs[0].data<uint32_t>(),
                values = outputs[1].data<float>()] { find_top(logits, width, count, ids, values); };
    }

    bool is_equivalent(const mx::Primitive&) const override { return true; }  // where their outputs have one shape

    DEFINE_NAME(FindTop)
};

class RestrictLogits : public CpuPrimitive {
  public:
    /// inputs: logits, masks
    Work work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
        require_contiguous(inputs[1], "masks");
        return [logits = logit_rows(inputs[0]),
                width = inputs[0].shape(-1),
                masks = inputs[1].data<uint32_t>(),
                num_words = inputs[1].shape(-1),
                y = outputs[0].data<float>()] { restrict_rows(logits, width, masks, num_words, y); };
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }

    bool is_equivalent(const mx::Primitive&) const override { return true; }

    DEFINE_NAME(RestrictLogits)
};

void require_logits(const mx::array& logits) {
    require_float32(logits, "logits");
    require(logits.ndim() == 2, "logits", "has not two dimensions");
    require(logits.shape(1) > 0, "logits", "has rows of no elements");
}

}  // namespace

std::vector<mx::array> draw(const mx::array& logits, const mx::array& choices, const mx::array& exempt_ids) {
    require_logits(logits);
    require_float32(choices, "choices");
    int rows = logits.shape(0);
    require(
        choices.shape() == mx::Shape{rows, kChoiceColumns}, "choices", "has not seven elements for each row of logits");
    require(exempt_ids.dtype() == mx::int32, "exempt_ids", "is not of int32");
    require(exempt_ids.ndim() == 2 && exempt_ids.shape(0) == rows, "exempt_ids", "has not one row for each of logits");
    return mx::array::make_arrays(
        {{rows}, {rows}}, {mx::uint32, mx::float32}, std::make_shared<ChooseTokens>(), {logits, choices, exempt_ids});
}

std::vector<mx::array> top(const mx::array& logits, int count) {
    require_logits(logits);
    require(count > 0 && count <= logits.shape(1), "count", "is not from 1 to the elements of a row of logits");
    mx::Shape shape{logits.shape(0), count};
    return mx::array::make_arrays({shape, shape}, {mx::uint32, mx::float32}, std::make_shared<FindTop>(), {logits});
}

mx::array restrict(const mx::array& logits, const mx::array& masks) {
    require_logits(logits);
    require(masks.dtype() == mx::uint32, "masks", "is not of uint32");
    require(masks.ndim() == 2 && masks.shape(0) == logits.shape(0), "masks", "has not one row for each of logits");
    return made_by(std::make_shared<RestrictLogits>(), {logits, masks});
}

}  // namespace pomona
