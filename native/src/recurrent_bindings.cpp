#include "recurrent_bindings.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "recurrent.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

using mlx::core::array;

void define_recurrent(nb::module_& m) {
    m.def(
        "gated_delta",
        [](const array& mixed,
           const array& decays,
           const array& corrections,
           const array& convolution,
           const array& decay_rates,
           const array& decay_biases,
           const std::vector<DeltaState>& states,
           const std::vector<std::vector<int>>& pieces) {
            return gated_delta({mixed, decays, corrections, convolution, decay_rates, decay_biases}, states, pieces);
        },
        "mixed"_a,
        "decays"_a,
        "corrections"_a,
        "convolution"_a,
        "decay_rates"_a,
        "decay_biases"_a,
        "states"_a,
        "pieces"_a,
        "Go through the tokens of some rows by the gated delta rule.");
}

}  // namespace pomona
