#pragma once

#include <cstddef>

/// Memory straight from the system: what differs between systems stands here.
namespace pomona {

/// Zeros that take memory only once they are written to: a page at a time, which may be a large one of some MiB.
class LazyMemory {
  public:
    /// @throws std::bad_alloc where the system has no such range.
    explicit LazyMemory(size_t num_bytes);
    LazyMemory(const LazyMemory&) = delete;
    LazyMemory& operator=(const LazyMemory&) = delete;
    ~LazyMemory();

    /// The first byte, at the start of a page.
    char* data() const { return data_; }

  private:
    size_t num_bytes_;
    char* data_;
};

size_t page_bytes();

/// Gives the pages that lie wholly within a range of such memory back to the system. What they hold is lost: it becomes
/// zeros, at once or when the system needs the memory.
void give_back(char* begin, char* end);

/// Gives what the allocator of C keeps of freed memory back to the system, as far as it can.
void give_back_freed();

}  // namespace pomona
