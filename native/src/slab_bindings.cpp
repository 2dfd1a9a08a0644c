#include "slab_bindings.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "slab.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using pomona::Arrival;
using pomona::Conversion;
using pomona::Slab;

// Region, file, offset, bytes, and the word of a conversion.
using Piece = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;

Conversion conversion_of(const std::string& word) {
    if (word == "none") {
        return Conversion::none;
    }
    if (word == "from_bfloat16") {
        return Conversion::from_bfloat16;
    }
    if (word == "from_float16") {
        return Conversion::from_float16;
    }
    throw pomona::ReadRejected("there is no such conversion");
}

const char* word_of(pomona::SlotState state) {
    switch (state) {
        case pomona::SlotState::idle:
            return "idle";
        case pomona::SlotState::loading:
            return "loading";
        case pomona::SlotState::ready:
            return "ready";
        case pomona::SlotState::leased:
            return "leased";
    }
    return "idle";
}

const char* word_of(Arrival::Kind kind) {
    switch (kind) {
        case Arrival::Kind::ready:
            return "ready";
        case Arrival::Kind::failed:
            return "failed";
        case Arrival::Kind::cancelled:
            return "cancelled";
        case Arrival::Kind::stale:
            return "stale";
        case Arrival::Kind::waiting:
            return "waiting";
    }
    return "waiting";
}

uint64_t fill(Slab& slab, int64_t slot, const std::vector<std::vector<Piece>>& reads) {
    std::vector<std::vector<pomona::SlabSegment>> whole;
    for (const std::vector<Piece>& read : reads) {
        std::vector<pomona::SlabSegment> segments;
        for (const auto& [region, file, offset, num_bytes, conversion] : read) {
            segments.push_back({region, file, offset, num_bytes, conversion_of(conversion)});
        }
        whole.push_back(std::move(segments));
    }
    return slab.fill(slot, whole);
}

std::tuple<std::string, int> wait(Slab& slab, int64_t slot, uint64_t generation, int64_t longest_ms) {
    Arrival arrival = slab.reads().wait(slot, generation, std::chrono::milliseconds(longest_ms));
    return {word_of(arrival.kind), arrival.code};
}

/// Raises the Python exception `native.errors.<name>`, built from `facts`.
template <typename... Facts>
void raise(const char* name, Facts... facts) {
    nb::object type = nb::module_::import_("native.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(facts...).ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const pomona::SlotBusy& error) {
        raise("SlotBusy", error.slot);
    } catch (const pomona::SlotStale& error) {
        raise("SlotStale", error.slot);
    } catch (const pomona::ReadRejected& error) {
        raise("ReadRejected", error.problem);
    } catch (const pomona::MemoryUnshared&) {
        raise("MemoryUnshared");
    } catch (const pomona::FileUnopened& error) {
        raise("FileUnopened", error.code);
    }
}

}  // namespace

void define_slabs(nb::module_& m) {
    nb::register_exception_translator(translate);
    using Free = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Slab>(m, "Slab", "Slots that hold arrays which are read from files.")
        .def(nb::init<int64_t, int, bool>(),
             "num_slots"_a,
             "num_threads"_a,
             "bypasses_cache"_a,
             "Make slots without a region.")
        .def("add_region", &Slab::add_region, "shape"_a, "dtype"_a, "Add a region and return its number.")
        .def("array", &Slab::array, "region"_a, "Return the array of a region.")
        .def_prop_ro("num_bytes", &Slab::num_bytes, "Bytes of all regions, and those that are read through.")
        .def(
            "open",
            [](Slab& slab, const std::filesystem::path& path) { return slab.reads().open(path); },
            "path"_a,
            Free(),
            "Open a file and return its number.")
        .def("fill", &fill, "slot"_a, "reads"_a, Free(), "Have a slot filled, and return the generation of that.")
        .def("wait", &wait, "slot"_a, "generation"_a, "longest_ms"_a, Free(), "Wait until a slot is filled.")
        .def(
            "lease",
            [](Slab& slab, int64_t slot, uint64_t generation) { slab.reads().lease(slot, generation); },
            "slot"_a,
            "generation"_a,
            "Keep what a slot holds.")
        .def(
            "release",
            [](Slab& slab, int64_t slot, uint64_t generation) { slab.reads().release(slot, generation); },
            "slot"_a,
            "generation"_a,
            "Keep it no longer.")
        .def(
            "cancel",
            [](Slab& slab, int64_t slot, uint64_t generation) { slab.reads().cancel(slot, generation); },
            "slot"_a,
            "generation"_a,
            "Give a filling up.")
        .def(
            "state",
            [](Slab& slab, int64_t slot) { return std::string(word_of(slab.reads().state(slot))); },
            "slot"_a,
            "Say what a slot is.")
        .def("close", [](Slab& slab) { slab.reads().close(); }, Free(), "Give everything up and end the threads.");
}
