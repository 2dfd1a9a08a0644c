#include "slab.h"

#include <utility>

namespace pomona {

namespace mx = mlx::core;

Slab::Slab(int64_t num_slots, int num_threads, bool bypasses_cache)
    : num_slots_(num_slots), num_threads_(num_threads), reads_(num_threads, num_slots, bypasses_cache) {}

int64_t Slab::add_region(const std::vector<int64_t>& shape, mx::Dtype dtype) {
    std::vector<int64_t> whole{num_slots_};
    whole.insert(whole.end(), shape.begin(), shape.end());
    LazyArray lazy = lazy_array(whole, dtype);
    reads_.keep(lazy.memory);
    auto slot_bytes = static_cast<int64_t>(lazy.array.nbytes()) / num_slots_;
    regions_.push_back({std::move(lazy), slot_bytes});
    return static_cast<int64_t>(regions_.size()) - 1;
}

mx::array Slab::array(int64_t region) const {
    return region_at(region).lazy.array;
}

int64_t Slab::num_bytes() const {
    int64_t num_bytes = num_threads_ * static_cast<int64_t>(Bounce::kBytes);
    for (const Region& region : regions_) {
        num_bytes += lazy_array_bytes(static_cast<int64_t>(region.lazy.array.nbytes()));
    }
    return num_bytes;
}

uint64_t Slab::fill(int64_t slot, const std::vector<std::vector<SlabSegment>>& reads) {
    static_cast<void>(reads_.state(slot));  // there is one
    std::vector<Read> placed;
    for (const std::vector<SlabSegment>& read : reads) {
        Read segments;
        for (const SlabSegment& segment : read) {
            segments.push_back(segment_of(slot, segment));
        }
        placed.push_back(std::move(segments));
    }
    return reads_.fill(slot, std::move(placed));
}

Segment Slab::segment_of(int64_t slot, const SlabSegment& segment) const {
    const Region& region = region_at(segment.region);
    auto stored = static_cast<int64_t>(stored_bytes(segment.conversion));
    auto converted = static_cast<int64_t>(converted_bytes(segment.conversion));
    if (segment.num_bytes % stored != 0 || segment.num_bytes / stored != region.slot_bytes / converted ||
        region.slot_bytes % converted != 0) {
        throw ReadRejected("a segment is not all of its place");
    }
    return {segment.file,
            segment.offset,
            segment.num_bytes,
            region.lazy.data + slot * region.slot_bytes,
            segment.conversion};
}

const Slab::Region& Slab::region_at(int64_t number) const {
    if (number < 0 || number >= static_cast<int64_t>(regions_.size())) {
        throw ReadRejected("there is no such region");
    }
    return regions_[number];
}

}  // namespace pomona
