#include "mapped_ranges.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace pomona {

namespace {

std::atomic<MappedRange*> first_range{nullptr};

// What one call asks about.
constexpr size_t kAskedPages = 1024;
// So often nothing may be missing in a row before nobody asks any more: a few tokens of a model of many layers.
constexpr int kQuietTimes = 256;

std::atomic<int> quiet_times{0};
std::atomic<long> faults_when_quiet{0};

/// How often the system has read something for this process because it was touched.
long major_faults() {
    struct rusage usage;
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_majflt : 0;
}

#ifdef __APPLE__
using Presence = char;
#else
using Presence = unsigned char;
#endif

MappedRange* free_range() {
    for (MappedRange* range = first_range.load(std::memory_order_acquire); range; range = range->next) {
        bool is_taken = false;
        if (range->is_taken.compare_exchange_strong(is_taken, true)) {
            return range;
        }
    }
    auto* range = new MappedRange;
    range->next = first_range.load(std::memory_order_relaxed);
    while (!first_range.compare_exchange_weak(range->next, range, std::memory_order_release)) {
    }
    return range;
}

/// Asks for the pages of [begin, begin + count) that are not in memory, each run of them at once.
///
/// @return whether there is one.
bool bring_in_pages(char* begin, size_t count, size_t page_bytes) {
    std::array<Presence, kAskedPages> presence;
    if (::mincore(begin, count * page_bytes, presence.data()) != 0) {
        return false;
    }
    bool is_any_missing = false;
    for (size_t page = 0; page < count;) {
        size_t end = page;
        while (end < count && (presence[end] & 1) == 0) {
            ++end;
        }
        if (end > page) {
            is_any_missing = true;
            ::madvise(begin + page * page_bytes, (end - page) * page_bytes, MADV_WILLNEED);
        }
        page = end + 1;
    }
    return is_any_missing;
}

}  // namespace

MappedRange* note_range(const void* begin, size_t num_bytes, bool tells_presence) {
    MappedRange* range = free_range();
    range->tells_presence.store(tells_presence, std::memory_order_release);
    auto address = reinterpret_cast<uintptr_t>(begin);
    range->end.store(address + num_bytes, std::memory_order_release);
    range->begin.store(address, std::memory_order_release);
    return range;
}

void forget_range(MappedRange* range) {
    range->begin.store(0, std::memory_order_release);
    range->is_taken.store(false, std::memory_order_release);
}

const MappedRange* range_at(const void* place) {
    auto address = reinterpret_cast<uintptr_t>(place);
    for (MappedRange* range = first_range.load(std::memory_order_acquire); range; range = range->next) {
        uintptr_t begin = range->begin.load(std::memory_order_acquire);
        if (begin != 0 && address >= begin && address < range->end.load(std::memory_order_acquire)) {
            return range;
        }
    }
    return nullptr;
}

bool may_be_missing() {
    if (quiet_times.load(std::memory_order_relaxed) < kQuietTimes) {
        return true;
    }
    if (major_faults() == faults_when_quiet.load(std::memory_order_relaxed)) {
        return false;
    }
    quiet_times.store(0, std::memory_order_relaxed);
    return true;
}

void note_presence(bool is_any_missing) {
    if (is_any_missing) {
        quiet_times.store(0, std::memory_order_relaxed);
    } else if (quiet_times.fetch_add(1, std::memory_order_relaxed) + 1 >= kQuietTimes) {
        faults_when_quiet.store(major_faults(), std::memory_order_relaxed);
    }
}

bool bring_in(const MappedRange& range, const void* begin, size_t num_bytes) {
    static const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    auto address = reinterpret_cast<uintptr_t>(begin);
    uintptr_t first = address / page_bytes * page_bytes;
    size_t num_pages = (address + num_bytes - first + page_bytes - 1) / page_bytes;
    if (!range.tells_presence.load(std::memory_order_acquire)) {
        ::madvise(reinterpret_cast<void*>(first), num_pages * page_bytes, MADV_WILLNEED);
        return false;
    }
    bool is_any_missing = false;
    for (size_t page = 0; page < num_pages; page += kAskedPages) {
        char* at = reinterpret_cast<char*>(first) + page * page_bytes;
        is_any_missing = bring_in_pages(at, std::min(kAskedPages, num_pages - page), page_bytes) || is_any_missing;
    }
    return is_any_missing;
}

}  // namespace pomona
