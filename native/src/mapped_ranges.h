#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/// Where files are mapped in this process. Whoever maps one notes it; a signal handler asks, and so do kernels that are
/// about to read.
namespace pomona {

/// One range of addresses. The list of them is read by a signal handler, so its nodes are never freed: one that is
/// given back is used again.
struct MappedRange {
    std::atomic<bool> is_taken{true};
    std::atomic<uintptr_t> begin{0};  ///< 0: nothing is mapped.
    std::atomic<uintptr_t> end{0};
    std::atomic<bool> tells_presence{true};  ///< whether the system says which of its pages are in memory
    MappedRange* next = nullptr;
};

/// Notes that a file is mapped at `begin`, until `forget_range`; any thread may call both.
///
/// @param tells_presence whether this process owns the file or may write it: of others Linux says that every page is in
///     memory, see mincore(2).
MappedRange* note_range(const void* begin, size_t num_bytes, bool tells_presence = true);

/// Forgets a range; to be called before its addresses are used for anything else.
void forget_range(MappedRange* range);

/// Returns the range that holds an address, null where no file is mapped there; a signal handler may ask.
const MappedRange* range_at(const void* address);

/// Tells whether it is worth asking for pages that are not in memory: not where none was missing for a while, and the
/// system has read none for this process since. To ask costs some microseconds a range, to ask this one altogether.
bool may_be_missing();

/// Takes what was found by asking for several ranges.
void note_presence(bool is_any_missing);

/// Has the system begin to read what of a mapped range is not in memory, all of it at once and nothing else.
///
/// Without it a page is read when it is touched, alone or with as much around it as the disk's read-ahead says: both
/// are several times slower than to read what is needed. It returns before the bytes are there.
///
/// @param range that the bytes are of.
/// @return whether any was missing, as far as the system says it.
bool bring_in(const MappedRange& range, const void* begin, size_t num_bytes);

}  // namespace pomona
