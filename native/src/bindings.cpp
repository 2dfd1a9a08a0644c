#include "bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "blend.h"
#include "crossing.h"
#include "dense.h"
#include "encoder.h"
#include "fused.h"
#include "instruction_set.h"
#include "lost_pages.h"
#include "low_rank.h"
#include "mapped.h"
#include "memory.h"
#include "operands.h"
#include "paged.h"
#include "pool.h"
#include "program.h"
#include "quantized.h"
#include "recurrent_bindings.h"
#include "sampling.h"
#include "slab_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

const char* word_of(pomona::MappingKind kind) {
    switch (kind) {
        case pomona::MappingKind::in_place:
            return "in_place";
        case pomona::MappingKind::whole_pages_in_place:
            return "whole_pages_in_place";
        case pomona::MappingKind::copied:
            return "copied";
    }
    return "copied";
}

/// Raises the Python exception `native.errors.<name>`, built from `facts`.
template <typename... Facts>
void raise(const char* name, Facts... facts) {
    nb::object type = nb::module_::import_("native.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(facts...).ptr());
}

/// Gives each C++ error of this library its class in native/errors.py.
void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const pomona::FileUnreadable& error) {
        raise("FileUnreadable", error.code);
    } catch (const pomona::RangeOutsideFile& error) {
        raise("RangeOutsideFile", error.offset, error.num_bytes, error.file_bytes);
    } catch (const pomona::OffsetMisaligned& error) {
        raise("OffsetMisaligned", error.offset, error.item_bytes);
    } catch (const pomona::ShapeRejected&) {
        raise("ShapeRejected");
    } catch (const pomona::QuantizationUnsupported& error) {
        raise("QuantizationUnsupported", error.bits, error.group_size);
    } catch (const pomona::NotRecordable& error) {
        raise("NotRecordable", error.operation);
    } catch (const pomona::OperandRejected& error) {
        raise("OperandRejected", error.operand, error.problem);
    }
}

using mlx::core::array;

// Codes, scales and biases, as they come from Python.
using Triple = std::tuple<array, array, array>;

pomona::QuantizedArrays arrays_of(const Triple& triple) {
    return {std::get<0>(triple), std::get<1>(triple), std::get<2>(triple)};
}

/// The functions of native/kernels.py: products.
void define_products(nb::module_& m) {
    m.def(
        "quantized_linear",
        [](const array& x,
           const array& codes,
           const array& scales,
           const array& biases,
           int group_size,
           int bits,
           const std::optional<array>& addend) {
            if (addend) {
                return pomona::quantized_linear_and_add(x, {codes, scales, biases}, *addend, {group_size, bits});
            }
            return pomona::quantized_linears(x, {{codes, scales, biases}}, {group_size, bits}).front();
        },
        "x"_a,
        "codes"_a,
        "scales"_a,
        "biases"_a,
        "group_size"_a,
        "bits"_a,
        "addend"_a = nb::none(),
        "Multiply rows with a quantized matrix, transposed.");
    m.def(
        "quantized_linears",
        [](const array& x, const std::vector<Triple>& matrices, int group_size, int bits) {
            std::vector<pomona::QuantizedArrays> arrays;
            for (const Triple& triple : matrices) {
                arrays.push_back(arrays_of(triple));
            }
            return pomona::quantized_linears(x, arrays, {group_size, bits});
        },
        "x"_a,
        "matrices"_a,
        "group_size"_a,
        "bits"_a,
        "Multiply rows with several quantized matrices, transposed.");
    m.def(
        "quantized_swiglu",
        [](const array& x, const Triple& gate, const Triple& up, int group_size, int bits) {
            return pomona::quantized_swiglu(x, arrays_of(gate), arrays_of(up), {group_size, bits});
        },
        "x"_a,
        "gate"_a,
        "up"_a,
        "group_size"_a,
        "bits"_a,
        "Multiply rows with two quantized matrices, transposed, and join the products.");
    m.def(
        "gather_quantized_linear",
        [](const array& x, const Triple& matrices, const array& choices, int group_size, int bits) {
            return pomona::gather_quantized_linear(x, arrays_of(matrices), choices, {group_size, bits});
        },
        "x"_a,
        "matrices"_a,
        "choices"_a,
        "group_size"_a,
        "bits"_a,
        "Multiply each row with the quantized matrix of its choice, transposed.");
    m.def(
        "quantized_rows",
        [](const array& codes,
           const array& scales,
           const array& biases,
           const array& indices,
           int group_size,
           int bits) { return pomona::quantized_rows({codes, scales, biases}, indices, {group_size, bits}); },
        "codes"_a,
        "scales"_a,
        "biases"_a,
        "indices"_a,
        "group_size"_a,
        "bits"_a,
        "Look up rows of a quantized matrix.");
}

/// The functions of native/dense.py.
void define_dense(nb::module_& m) {
    m.def(
        "linear",
        [](const array& x, const array& weight, const std::optional<array>& addend) {
            return addend ? pomona::linear_and_add(x, weight, *addend) : pomona::linears(x, {weight}).front();
        },
        "x"_a,
        "weight"_a,
        "addend"_a = nb::none(),
        "Multiply rows with a matrix, transposed.");
    m.def("linears", &pomona::linears, "x"_a, "weights"_a, "Multiply rows with several matrices, transposed.");
    m.def("linear_swiglu",
          &pomona::linear_swiglu,
          "x"_a,
          "gate"_a,
          "up"_a,
          "Multiply rows with two matrices, transposed, and join the products.");
    m.def("rows", &pomona::rows, "weight"_a, "indices"_a, "Look up rows of a matrix.");
}

/// The function of native/low_rank.py.
void define_low_rank(nb::module_& m) {
    m.def("add_low_rank",
          &pomona::add_low_rank_products,
          "x"_a,
          "addend"_a,
          "matrices"_a,
          "scales"_a,
          "rows"_a,
          "Add to each row its product with two narrow matrices.");
}

/// The functions of native/kernels.py: what stands between products.
void define_fused(nb::module_& m) {
    m.def("rms_norm", &pomona::rms_norm, "x"_a, "weight"_a, "epsilon"_a, "Normalize rows by their root mean square.");
    m.def("layer_norm",
          &pomona::layer_norm,
          "x"_a,
          "weight"_a,
          "bias"_a,
          "epsilon"_a,
          "Normalize rows to mean 0 and variance 1.");
    m.def("gelu", &pomona::gelu, "x"_a, "Weigh each number by the normal distribution function of it.");
    m.def("full_attention",
          &pomona::full_attention,
          "queries"_a,
          "keys"_a,
          "values"_a,
          "num_heads"_a,
          "scale"_a,
          "Let every query see every key.");
    m.def("head_attention",
          &pomona::head_attention,
          "queries"_a,
          "keys"_a,
          "values"_a,
          "num_heads"_a,
          "scale"_a,
          "is_causal"_a,
          "Let queries see keys, heads side by side.");
    m.def("swiglu", &pomona::swiglu, "gate"_a, "up"_a, "Join the two halves of a gated layer.");
    m.def(
        "add",
        [](const array& x, const array& addend) { return pomona::add(x, addend); },
        "x"_a,
        "addend"_a,
        "Add rows, or one row to each.");
    m.def(
        "angles",
        [](const array& positions, const array& turns, float scale) {
            std::vector<array> found = pomona::angles(positions, turns, scale);
            return std::make_tuple(found[0], found[1]);
        },
        "positions"_a,
        "turns"_a,
        "scale"_a,
        "Find the cosines and sines of positions.");
    m.def("rotate",
          &pomona::rotate,
          "x"_a,
          "cosines"_a,
          "sines"_a,
          "interleaved"_a = false,
          "Turn pairs of elements by angles.");
    m.def("attention",
          &pomona::attention,
          "queries"_a,
          "keys"_a,
          "values"_a,
          "scale"_a,
          "is_causal"_a,
          "Attend to keys and values.");
}

/// The functions of native/blend.py.
void define_blends(nb::module_& m) {
    m.def("geglu", &pomona::geglu, "gate"_a, "up"_a, "Join the two halves of a layer that is gated by a gelu.");
    m.def("multiply", &pomona::multiply, "x"_a, "factor"_a, "Multiply element by element.");
    m.def("columns", &pomona::columns, "x"_a, "begin"_a, "count"_a, "Take columns that lie next to one another.");
    m.def("soft_bound", &pomona::soft_bound, "x"_a, "bound"_a, "Keep elements within a bound.");
}

/// The functions of native/kernels.py: attention over blocks.
void define_paged(nb::module_& m) {
    m.def("kv_pool",
          &pomona::kv_pool,
          "num_blocks"_a,
          "num_layers"_a,
          "kv_heads"_a,
          "head_dim"_a,
          "Make a pool of blocks for keys and values.");
    m.def("release_freed",
          &pomona::give_back_freed,
          nb::call_guard<nb::gil_scoped_release>(),
          "Give freed memory back to the system.");
    m.def("release_blocks",
          &pomona::release_blocks,
          "pool"_a,
          "block_ids"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Give the memory of blocks back to the system.");
    m.def(
        "paged_attention",
        [](const array& queries,
           const array& keys,
           const array& values,
           const std::optional<array>& cosines,
           const std::optional<array>& sines,
           const array& pool,
           const array& rows,
           int64_t layer,
           float scale,
           int64_t window,
           bool interleaved) {
            return pomona::paged_attention({queries, keys, values, cosines, sines, pool, rows},
                                           {layer, scale, window, interleaved});
        },
        "queries"_a,
        "keys"_a,
        "values"_a,
        "cosines"_a.none(),
        "sines"_a.none(),
        "pool"_a,
        "rows"_a,
        "layer"_a,
        "scale"_a,
        "window"_a,
        "interleaved"_a,
        "Store keys and values in blocks, and attend to them.");
}

/// The functions of native/sampling.py.
void define_draws(nb::module_& m) {
    m.def(
        "draw",
        [](const array& logits, const array& choices, const array& exempt_ids) {
            std::vector<array> drawn = pomona::draw(logits, choices, exempt_ids);
            return std::make_tuple(drawn[0], drawn[1]);
        },
        "logits"_a,
        "choices"_a,
        "exempt_ids"_a,
        "Draw a token from each row of logits.");
    m.def(
        "top",
        [](const array& logits, int count) {
            std::vector<array> found = pomona::top(logits, count);
            return std::make_tuple(found[0], found[1]);
        },
        "logits"_a,
        "count"_a,
        "Find the largest logits of each row.");
    m.def("restrict", &pomona::restrict, "logits"_a, "masks"_a, "Make minus infinity of what masks forbid.");
}

/// The class of native/program.py.
void define_programs(nb::module_& m) {
    nb::class_<pomona::Program>(m, "Program", "What computes some arrays of others, as one operation.")
        .def(nb::init<const std::vector<array>&, const std::vector<array>&, const std::vector<pomona::Dimensions>&>(),
             "inputs"_a,
             "outputs"_a,
             "dimensions"_a,
             "Record what computes the outputs of the inputs.")
        .def("__call__", &pomona::Program::operator(), "inputs"_a, "Compute the same of other inputs.");
}

/// The functions of native/kernels.py: how the kernels run.
void define_settings(nb::module_& m) {
    m.def("take_failure", &pomona::take_failure, "Return what went wrong in a kernel since the last call.");
    m.def(
        "instruction_set",
        [] { return std::string(pomona::instructions().name); },
        "Name the instruction set that the kernels use.");
    m.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (const pomona::Instructions* instructions : pomona::available_instructions()) {
                names.emplace_back(instructions->name);
            }
            return names;
        },
        "Name the instruction sets that this processor runs, the best first.");
    m.def("choose_instruction_set",
          &pomona::choose_instructions,
          "name"_a,
          "Use an instruction set, and tell whether there is one of that name.");
    m.def(
        "threads",
        [] { return pomona::Pool::shared().num_threads(); },
        "Return the number of threads that work on a kernel.");
    m.def(
        "set_threads",
        [](int num_threads) { pomona::Pool::shared().resize(num_threads); },
        "num_threads"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Set the number of threads that work on a kernel, 1 or more.");
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The compiled part of `native`; import that instead.";
    nb::module_::import_("mlx.core");  // its types must be known before a function here names them
    nb::register_exception_translator(translate);

    m.def("round_trip",
          &pomona::round_trip,
          "source"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Build an array anew from what C++ sees of another.");
    m.def(
        "mapping_kind",
        [] { return word_of(pomona::mapping_kind()); },
        "Say what `map_array` does with the MLX library at hand.");
    m.def("map_array",
          &pomona::map_array,
          "path"_a,
          "offset"_a,
          "shape"_a,
          "dtype"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Make an array whose elements are a range of a file.");
    m.def("end_on_lost_pages",
          &pomona::end_on_lost_pages,
          "last_words"_a,
          "exit_code"_a,
          "End the process in an orderly way when a mapped page cannot be read.");
    define_products(m);
    define_dense(m);
    define_low_rank(m);
    define_fused(m);
    define_blends(m);
    pomona::define_experts(m);
    define_paged(m);
    define_draws(m);
    define_programs(m);
    pomona::define_recurrent(m);
    define_settings(m);
    define_slabs(m);
}
