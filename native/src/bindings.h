#pragma once

#include <nanobind/nanobind.h>

/// Parts of the extension that have files of their own.
namespace pomona {

/// The functions of native/experts.py.
void define_experts(nanobind::module_& m);

}  // namespace pomona
