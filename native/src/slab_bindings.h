#pragma once

#include <nanobind/nanobind.h>

/// What native/slab.py calls.
void define_slabs(nanobind::module_& m);
