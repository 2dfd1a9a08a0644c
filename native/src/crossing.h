#pragma once

#include "mlx/array.h"

namespace pomona {

/// Builds an array anew from what C++ sees of another: its shape, its dtype and its bytes.
///
/// An extension and MLX agree by build alone; where they do not, this function is where it shows.
///
/// @param source any shape, dtype and layout; evaluated here.
/// @return a row-contiguous copy that owns its memory.
mlx::core::array round_trip(const mlx::core::array& source);

}  // namespace pomona
