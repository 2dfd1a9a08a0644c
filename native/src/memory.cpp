#include "memory.h"

#include <cstdlib>  // says whose library it is

#if defined(__GLIBC__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#endif
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace pomona {

namespace {

#if defined(MAP_NORESERVE)
constexpr int kMappingFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int kMappingFlags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

#if defined(__linux__)
constexpr int kUnneeded = MADV_DONTNEED;  // at once
#else
constexpr int kUnneeded = MADV_FREE;  // elsewhere MADV_DONTNEED keeps the memory
#endif

}  // namespace

LazyMemory::LazyMemory(size_t num_bytes) : num_bytes_(num_bytes) {
    void* pages = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, kMappingFlags, -1, 0);
    if (pages == MAP_FAILED) {
        throw std::bad_alloc();
    }
    data_ = static_cast<char*>(pages);
#if defined(MADV_HUGEPAGE)
    // Short pieces from many places: with small pages the search for their addresses takes a tenth of the time.
    static_cast<void>(::madvise(pages, num_bytes, MADV_HUGEPAGE));
#endif
}

LazyMemory::~LazyMemory() {
    ::munmap(data_, num_bytes_);
}

size_t page_bytes() {
    static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

void give_back(char* begin, char* end) {
    size_t page = page_bytes();
    auto first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
    auto last = reinterpret_cast<uintptr_t>(end) / page * page;
    if (first < last) {
        // Advice: where it is refused, the memory stays in use.
        static_cast<void>(::madvise(begin + (first - reinterpret_cast<uintptr_t>(begin)), last - first, kUnneeded));
    }
}

void give_back_freed() {
#if defined(__GLIBC__)
    ::malloc_trim(0);
#elif defined(__APPLE__)
    ::malloc_zone_pressure_relief(nullptr, 0);
#endif
}

}  // namespace pomona
