#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/vector.h>

#include "crossing.h"
#include "mapped.h"

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
    }
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
}
