#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "lazy_array.h"
#include "mlx/array.h"
#include "mlx/dtype.h"
#include "reads.h"

namespace pomona {

/// A piece of a slot: the whole of it in one region.
struct SlabSegment {
    int64_t region;  ///< as `Slab::add_region` numbered it
    int64_t file;    ///< as `Slab::open` did
    int64_t offset;
    int64_t num_bytes;  ///< in the file
    Conversion conversion;
};

/// Slots that hold arrays which are read from files: a region for each kind of array, with one place a slot.
///
/// What an array of a region shows of a slot is what was read into it. MLX does not know that it changes: who computes
/// with a slot leases it until the result is evaluated.
class Slab {
  public:
    /// See `Reads`.
    Slab(int64_t num_slots, int num_threads, bool bypasses_cache);

    /// Adds a region.
    ///
    /// @param shape of one slot's array.
    /// @throws ShapeRejected, MemoryUnshared, std::bad_alloc
    int64_t add_region(const std::vector<int64_t>& shape, mlx::core::Dtype dtype);

    /// The array [slots, ...] of a region, whose memory outlives the slab for as long as the array does.
    mlx::core::array array(int64_t region) const;

    /// Bytes of memory that the regions take once all slots were filled, and those that threads read through.
    int64_t num_bytes() const;

    /// @throws SlotBusy, ReadRejected, the latter also where a segment is not all of its region's place.
    uint64_t fill(int64_t slot, const std::vector<std::vector<SlabSegment>>& reads);

    Reads& reads() { return reads_; }

  private:
    struct Region {
        LazyArray lazy;
        int64_t slot_bytes;
    };

    Segment segment_of(int64_t slot, const SlabSegment& segment) const;
    const Region& region_at(int64_t number) const;

    int64_t num_slots_;
    int num_threads_;
    std::vector<Region> regions_;
    Reads reads_;
};

}  // namespace pomona
