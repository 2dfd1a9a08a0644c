#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "mlx/array.h"
#include "mlx/dtype.h"

namespace pomona {

/// Why a range of a file cannot become an array. No message names the file: such texts may reach a client.
class MappingError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The file cannot be opened, is not a regular file, or the system refuses to map it.
class FileUnreadable : public MappingError {
  public:
    explicit FileUnreadable(int code) : MappingError("file cannot be mapped"), code(code) {}

    /// The value of errno.
    int code;
};

/// The range does not lie within the file, or begins in its first 8 bytes.
class RangeOutsideFile : public MappingError {
  public:
    RangeOutsideFile(int64_t offset, int64_t num_bytes, int64_t file_bytes)
        : MappingError("range lies outside the file"), offset(offset), num_bytes(num_bytes), file_bytes(file_bytes) {}

    int64_t offset;
    int64_t num_bytes;
    int64_t file_bytes;
};

/// The offset is no multiple of the size of an element.
class OffsetMisaligned : public MappingError {
  public:
    OffsetMisaligned(int64_t offset, int64_t item_bytes)
        : MappingError("offset is no multiple of the element size"), offset(offset), item_bytes(item_bytes) {}

    int64_t offset;
    int64_t item_bytes;
};

/// A dimension is negative or over 2^31 - 1, or the array would have more bytes than fit in 63 bits.
class ShapeRejected : public MappingError {
  public:
    ShapeRejected() : MappingError("shape cannot be that of an array") {}
};

/// What the MLX library at hand does with a mapped range.
enum class MappingKind {
    in_place,              ///< CPU: the array's memory is the mapping, wherever the range begins.
    whole_pages_in_place,  ///< Metal: so where the range begins on a page; MLX copies any other.
    copied,                ///< CUDA: MLX copies each range when the array is made.
};

MappingKind mapping_kind();

/// Makes an array whose elements are a range of a file.
///
/// In place, nothing is read until an element is used, and the pages belong to the system's cache, not to MLX's count
/// of active memory. The mapping is read-only and lives as long as the array or a view of it; the file may be closed or
/// unlinked meanwhile, but must not be truncated (the system then raises SIGBUS at the next read: lost_pages.h). MLX
/// gives such memory to no other array: it is not its own, so `is_donatable` is false.
///
/// @param offset where the range begins, in bytes: a multiple of the element size, 8 or more.
/// @param shape dimensions; the elements are in row order and of this machine's byte order.
/// @throws FileUnreadable, RangeOutsideFile, OffsetMisaligned, ShapeRejected
mlx::core::array map_array(const std::filesystem::path& path,
                           int64_t offset,
                           const std::vector<int64_t>& shape,
                           mlx::core::Dtype dtype);

}  // namespace pomona
