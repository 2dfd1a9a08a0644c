#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

/// Ranges of files, read into memory of ours past the system's cache where it can be.
namespace pomona {

/// What becomes of the numbers of a range on their way into memory.
enum class Conversion {
    none,           ///< they stay as they are
    from_bfloat16,  ///< to float32, exactly
    from_float16,   ///< the same
};

/// Bytes that a number of a range has in the file, and in memory.
size_t stored_bytes(Conversion conversion);
size_t converted_bytes(Conversion conversion);

/// `pread`, or what stands for it in checks.
using ReadRange = std::function<ssize_t(int descriptor, void* bytes, size_t num_bytes, off_t offset)>;

/// A file that is open for reading.
class OpenFile {
  public:
    /// @param bypasses_cache whether reads go past the system's cache: by O_DIRECT, by F_NOCACHE on macOS, or where a
    ///     file system knows neither by dropping the pages after each.
    /// @return none where it cannot be opened or is no regular file; `code` says why.
    static std::unique_ptr<OpenFile> open(const std::filesystem::path& path, bool bypasses_cache, int& code);
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    ~OpenFile();

    /// For reads at any place.
    int plain() const { return plain_; }

    /// For reads of whole blocks; none where the file system knows no such reads.
    std::optional<int> direct() const;

    /// Notes that the file system refuses such reads after all.
    void give_up_direct() { direct_works_.store(false, std::memory_order_relaxed); }

    bool bypasses_cache() const { return bypasses_cache_; }

  private:
    OpenFile(int plain, int direct, bool bypasses_cache);

    int plain_;
    int direct_;  // or -1
    bool bypasses_cache_;
    std::atomic<bool> direct_works_;
};

/// Memory through which a thread reads what must begin and end at blocks, and what is converted.
class Bounce {
  public:
    /// @throws std::bad_alloc
    Bounce();
    Bounce(const Bounce&) = delete;
    Bounce& operator=(const Bounce&) = delete;
    ~Bounce();

    char* data() const { return data_; }

    static constexpr size_t kBlockBytes = 4096;
    static constexpr size_t kBytes = 256 * kBlockBytes;

  private:
    char* data_;
};

/// A range of a file and where it goes.
struct Range {
    OpenFile* file;
    int64_t offset;
    int64_t num_bytes;  ///< in the file: a multiple of `stored_bytes`
    char* destination;  ///< aligned for the numbers that it gets
    Conversion conversion;
};

/// Reads a range.
///
/// Interrupted and short reads go on where they stopped.
///
/// @param stops looked at between reads of a megabyte: whether nobody wants the range any more.
/// @return 0, or errno: ENODATA where the file ends before, ECANCELED where it was stopped.
int read_range(const Range& range, const ReadRange& read, Bounce& bounce, const std::atomic<bool>& stops);

}  // namespace pomona
