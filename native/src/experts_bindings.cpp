#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "experts.h"
#include "quantized.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

namespace {

using mlx::core::array;

// Codes, scales and biases, as they come from Python.
using Triple = std::tuple<array, array, array>;

QuantizedArrays arrays_of(const Triple& triple) {
    return {std::get<0>(triple), std::get<1>(triple), std::get<2>(triple)};
}

Gate gate_of(bool is_gelu) {
    return is_gelu ? Gate::geglu : Gate::swiglu;
}

}  // namespace

void define_experts(nb::module_& m) {
    m.def(
        "choose_experts",
        [](const array& logits, int num_chosen, bool is_of_all, const std::optional<array>& scale) {
            Sharing sharing = is_of_all ? Sharing::of_all : Sharing::of_chosen;
            std::vector<array> found = choose_experts(logits, num_chosen, sharing, scale);
            return std::make_tuple(found[0], found[1]);
        },
        "logits"_a,
        "num_chosen"_a,
        "is_of_all"_a,
        "scale"_a = nb::none(),
        "Choose the experts of the largest logits.");
    m.def(
        "mix",
        [](const array& answers, const array& shares) { return mix(answers, shares); },
        "answers"_a,
        "shares"_a,
        "Sum answers by their shares.");
    m.def("sigmoid_gate", &sigmoid_gate, "x"_a, "gate"_a, "Multiply with the sigmoid of a gate.");
    m.def("gather_linear",
          &gather_linear,
          "x"_a,
          "weights"_a,
          "choices"_a,
          "Multiply each row with the matrix of its choice, transposed.");
    m.def(
        "gather_gated",
        [](const array& x, const array& gate, const array& up, const array& choices, bool is_gelu) {
            return gather_gated(x, gate, up, choices, gate_of(is_gelu));
        },
        "x"_a,
        "gate"_a,
        "up"_a,
        "choices"_a,
        "is_gelu"_a,
        "Multiply each row with two matrices of its choice, transposed, and join the products.");
    m.def(
        "gather_quantized_gated",
        [](const array& x,
           const Triple& gate,
           const Triple& up,
           const array& choices,
           int group_size,
           int bits,
           bool is_gelu) {
            Gate join = gate_of(is_gelu);
            return gather_quantized_gated(x, arrays_of(gate), arrays_of(up), choices, {group_size, bits}, join);
        },
        "x"_a,
        "gate"_a,
        "up"_a,
        "choices"_a,
        "group_size"_a,
        "bits"_a,
        "is_gelu"_a,
        "Multiply each row with two quantized matrices of its choice, transposed, and join the products.");
}

}  // namespace pomona
