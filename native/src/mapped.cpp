#include "mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <memory>
#include <optional>

#include "mapped_ranges.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/metal.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

// MLX's CPU allocator keeps the size of a buffer in the word before its data, and `Buffer` points at that word. A
// mapped array's word is the 8 bytes of the file before its range: readable, but of no meaning. MLX reads it only to
// decide whether another array may take the buffer over, which it never may here.
constexpr int64_t kSizeWordBytes = sizeof(size_t);

class Descriptor {
  public:
    explicit Descriptor(const std::filesystem::path& path)
        // O_NONBLOCK: opening a pipe would wait for a writer; it has no meaning for a regular file.
        : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
        if (number_ < 0) {
            throw FileUnreadable(errno);
        }
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() { ::close(number_); }

    int number() const { return number_; }

    int64_t file_bytes() const {
        struct stat facts;
        if (::fstat(number_, &facts) != 0) {
            throw FileUnreadable(errno);
        }
        if (!S_ISREG(facts.st_mode)) {
            throw FileUnreadable(EINVAL);
        }
        return facts.st_size;
    }

  private:
    int number_;
};

/// Whole pages of a file, from the one that holds byte `begin` to the one that holds byte `end - 1`.
class Mapping {
  public:
    Mapping(const Descriptor& file, int64_t begin, int64_t end, bool tells_presence)
        : begin_(begin - begin % ::sysconf(_SC_PAGESIZE)) {
        length_ = end - begin_;
        pages_ = ::mmap(nullptr, length_, PROT_READ, MAP_SHARED, file.number(), begin_);
        if (pages_ == MAP_FAILED) {
            throw FileUnreadable(errno);
        }
        range_ = note_range(pages_, length_, tells_presence);
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
        forget_range(range_);
        ::munmap(pages_, length_);
    }

    /// The address of a byte of the file.
    char* at(int64_t offset) const { return static_cast<char*>(pages_) + (offset - begin_); }

  private:
    int64_t begin_;
    size_t length_;
    void* pages_;
    MappedRange* range_;
};

mx::Shape checked_shape(const std::vector<int64_t>& shape) {
    mx::Shape checked;
    for (int64_t dimension : shape) {
        if (dimension < 0 || dimension > std::numeric_limits<mx::ShapeElem>::max()) {
            throw ShapeRejected();
        }
        checked.push_back(static_cast<mx::ShapeElem>(dimension));
    }
    return checked;
}

int64_t bytes_of(const std::vector<int64_t>& shape, int64_t item_bytes) {
    int64_t num_bytes = item_bytes;
    for (int64_t dimension : shape) {
        if (__builtin_mul_overflow(num_bytes, dimension, &num_bytes)) {
            throw ShapeRejected();
        }
    }
    return num_bytes;
}

void check_range(int64_t offset, int64_t num_bytes, int64_t item_bytes, int64_t file_bytes) {
    // `file_bytes - num_bytes` cannot overflow, `offset + num_bytes` could.
    if (offset < kSizeWordBytes || offset > file_bytes - num_bytes) {
        throw RangeOutsideFile(offset, num_bytes, file_bytes);
    }
    if (offset % item_bytes != 0) {
        throw OffsetMisaligned(offset, item_bytes);
    }
}

/// Asks the allocator itself whether it keeps the size in the word before the data: what the library was built with
/// decides, not which devices are there.
bool keeps_size_word() {
    constexpr size_t kProbeBytes = 64;
    mx::allocator::Data probe = mx::allocator::malloc(kProbeBytes);
    mx::allocator::Buffer buffer = probe.buffer();
    return buffer.raw_ptr() == static_cast<char*>(buffer.ptr()) + kSizeWordBytes &&
           mx::allocator::allocator().size(buffer) >= kProbeBytes;
}

/// Tells whether the system says to this process which pages of a file are in memory.
bool tells_presence(const std::filesystem::path& path) {
    struct stat facts;
    return (::stat(path.c_str(), &facts) == 0 && facts.st_uid == ::geteuid()) || ::access(path.c_str(), W_OK) == 0;
}

/// Makes an array of memory that the GPU takes as it is, which it does with whole pages alone; none where it does not.
///
/// `data` begins on a page. What follows the array on its last page is given to the GPU too and is no part of it.
std::optional<mx::array> array_of_pages(
    const std::shared_ptr<Mapping>& mapping, char* data, int64_t num_bytes, const mx::Shape& shape, mx::Dtype dtype) {
    int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
    int64_t whole_bytes = (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
    mx::allocator::Buffer buffer = mx::allocator::make_buffer(data, whole_bytes);
    if (buffer.ptr() == nullptr) {
        return std::nullopt;
    }
    auto release = [mapping](mx::allocator::Buffer given) { mx::allocator::release(given); };
    return mx::array(mx::allocator::Data(buffer, release), shape, dtype);
}

}  // namespace

MappingKind mapping_kind() {
    static const MappingKind kind = keeps_size_word()           ? MappingKind::in_place
                                    : mx::metal::is_available() ? MappingKind::whole_pages_in_place
                                                                : MappingKind::copied;
    return kind;
}

mx::array map_array(const std::filesystem::path& path,
                    int64_t offset,
                    const std::vector<int64_t>& shape,
                    mx::Dtype dtype) {
    mx::Shape dimensions = checked_shape(shape);
    int64_t item_bytes = mx::size_of(dtype);
    int64_t num_bytes = bytes_of(shape, item_bytes);
    Descriptor file(path);
    check_range(offset, num_bytes, item_bytes, file.file_bytes());

    // The deleter owns the mapping: it goes when MLX drops the deleter, which it does with the last array on it.
    auto mapping = std::make_shared<Mapping>(file, offset - kSizeWordBytes, offset + num_bytes, tells_presence(path));
    if (mapping_kind() == MappingKind::in_place) {
        mx::allocator::Buffer buffer(mapping->at(offset - kSizeWordBytes));
        return mx::array(
            mx::allocator::Data(buffer, [mapping](mx::allocator::Buffer) {}), std::move(dimensions), dtype);
    }
    char* data = mapping->at(offset);
    if (mapping_kind() == MappingKind::whole_pages_in_place && offset % ::sysconf(_SC_PAGESIZE) == 0 && num_bytes > 0) {
        if (auto array = array_of_pages(mapping, data, num_bytes, dimensions, dtype)) {
            return *array;
        }
    }
    return mx::array(data, std::move(dimensions), dtype, [mapping](void*) {});
}

}  // namespace pomona
