#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "memory.h"
#include "mlx/array.h"
#include "mlx/dtype.h"

namespace pomona {

/// MLX copies memory of ours on this device, so nothing that is written into it later would be seen.
class MemoryUnshared : public std::runtime_error {
  public:
    MemoryUnshared() : std::runtime_error("memory is not shared with this device") {}
};

/// An array on memory of ours that is written in place, which MLX does not know.
struct LazyArray {
    mlx::core::array array;
    char* data;                          ///< of its first number, at the start of a page
    std::shared_ptr<LazyMemory> memory;  ///< which the array holds as well
};

/// Makes zeros in memory straight from the system, that take it only once they are written to. The memory is not part
/// of MLX's count, and MLX gives it to no other array.
///
/// @param shape each 1 or more.
/// @throws ShapeRejected, MemoryUnshared, std::bad_alloc
LazyArray lazy_array(const std::vector<int64_t>& shape, mlx::core::Dtype dtype);

/// Bytes of memory that such an array of so many takes, with what stands before and behind it.
int64_t lazy_array_bytes(int64_t num_bytes);

}  // namespace pomona
