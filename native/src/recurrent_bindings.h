#pragma once

#include <nanobind/nanobind.h>

namespace pomona {

/// The functions of native/recurrent.py.
void define_recurrent(nanobind::module_& m);

}  // namespace pomona
