#include "ranges.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace pomona {

namespace {

constexpr auto kBlock = static_cast<int64_t>(Bounce::kBlockBytes);
constexpr auto kBounce = static_cast<int64_t>(Bounce::kBytes);

#if defined(O_DIRECT)
constexpr int kDirect = O_DIRECT;
#else
constexpr int kDirect = 0;
#endif

int64_t down_to_block(int64_t number) {
    return number / kBlock * kBlock;
}

int64_t up_to_block(int64_t number) {
    return down_to_block(number + kBlock - 1);
}

float float_of_half(uint16_t bits) {
    uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 0x1F;
    uint32_t fraction = bits & 0x3FF;
    uint32_t word;
    if (exponent == 0x1F) {
        word = sign | 0x7F800000 | fraction << 13;
    } else if (exponent != 0) {
        word = sign | (exponent + 112) << 23 | fraction << 13;
    } else if (fraction == 0) {
        word = sign;
    } else {  // a fraction without a leading one: a float32 has room to give it one
        int shift = __builtin_clz(fraction) - 21;
        word = sign | static_cast<uint32_t>(113 - shift) << 23 | (fraction << shift & 0x3FF) << 13;
    }
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

float float_of_bfloat(uint16_t bits) {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

/// Moves whole numbers from where they were read to where they go.
void place(const char* from, char* to, int64_t num_bytes, Conversion conversion) {
    if (conversion == Conversion::none) {
        std::memcpy(to, from, num_bytes);
        return;
    }
    for (int64_t i = 0; i < num_bytes / static_cast<int64_t>(sizeof(uint16_t)); ++i) {
        uint16_t bits;
        std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
        float value = conversion == Conversion::from_float16 ? float_of_half(bits) : float_of_bfloat(bits);
        std::memcpy(to + i * sizeof(value), &value, sizeof(value));
    }
}

/// How far a range has come.
class Reading {
  public:
    Reading(const Range& range, const ReadRange& read, Bounce& bounce, const std::atomic<bool>& stops)
        : range_(range), read_(read), bounce_(bounce), stops_(stops) {}

    int run() {
        bool is_direct = range_.file->direct().has_value();
        while (done_ < range_.num_bytes) {
            if (stops_.load(std::memory_order_relaxed)) {
                return ECANCELED;
            }
            // What cannot be read by whole blocks, such as behind a short read, is read plainly to its end.
            is_direct = is_direct && range_.file->direct().has_value();
            int code = is_direct ? read_blocks(is_direct) : read_plainly();
            if (code != 0) {
                return code;
            }
        }
        return 0;
    }

  private:
    int64_t left() const { return range_.num_bytes - done_; }

    int64_t position() const { return range_.offset + done_; }

    char* target() const {
        auto numbers = done_ / static_cast<int64_t>(stored_bytes(range_.conversion));
        return range_.destination + numbers * static_cast<int64_t>(converted_bytes(range_.conversion));
    }

    /// Whether blocks can be read to where they go.
    bool is_aligned() const {
        return range_.conversion == Conversion::none && left() >= kBlock && position() % kBlock == 0 &&
               reinterpret_cast<uintptr_t>(target()) % kBlock == 0;
    }

    int read_blocks(bool& is_direct) {
        int64_t begin = down_to_block(position());
        int64_t lead = position() - begin;
        bool is_in_place = is_aligned();
        char* to = is_in_place ? target() : bounce_.data();
        int64_t wanted =
            is_in_place ? std::min(down_to_block(left()), kBounce) : std::min(up_to_block(lead + left()), kBounce);
        ssize_t got = read_(*range_.file->direct(), to, wanted, begin);
        if (got < 0) {
            if (errno == EINVAL) {
                range_.file->give_up_direct();
                return 0;
            }
            return errno == EINTR ? 0 : errno;
        }
        if (got == 0) {
            return ENODATA;
        }
        int64_t useful = whole(std::min<int64_t>(got - lead, left()));
        if (useful <= 0 || got < wanted) {
            is_direct = false;
        }
        if (useful > 0) {
            if (!is_in_place) {
                place(to + lead, target(), useful, range_.conversion);
            }
            done_ += useful;
        }
        return 0;
    }

    int read_plainly() {
        bool is_in_place = range_.conversion == Conversion::none;
        char* to = is_in_place ? target() : bounce_.data();
        auto least = static_cast<int64_t>(stored_bytes(range_.conversion));
        int64_t begin = position();
        int64_t wanted = std::min(left(), kBounce);
        int64_t had = 0;
        while (had < least) {  // a part of a number cannot be converted
            ssize_t got = read_(range_.file->plain(), to + had, wanted - had, begin + had);
            if (got < 0 && errno != EINTR) {
                return errno;
            }
            if (got == 0) {
                return ENODATA;
            }
            had += std::max<ssize_t>(got, 0);
            if (got < 0 && stops_.load(std::memory_order_relaxed)) {
                return ECANCELED;
            }
        }
        int64_t useful = whole(had);
        if (!is_in_place) {
            place(to, target(), useful, range_.conversion);
        }
        done_ += useful;
        drop(begin, useful);
        return 0;
    }

    int64_t whole(int64_t num_bytes) const {
        auto size = static_cast<int64_t>(stored_bytes(range_.conversion));
        return num_bytes / size * size;
    }

    void drop(int64_t begin, int64_t num_bytes) const {
#if defined(POSIX_FADV_DONTNEED)
        if (range_.file->bypasses_cache()) {
            static_cast<void>(::posix_fadvise(range_.file->plain(), begin, num_bytes, POSIX_FADV_DONTNEED));
        }
#else
        static_cast<void>(begin);
        static_cast<void>(num_bytes);
#endif
    }

    const Range& range_;
    const ReadRange& read_;
    Bounce& bounce_;
    const std::atomic<bool>& stops_;
    int64_t done_ = 0;  // bytes of the file
};

}  // namespace

size_t stored_bytes(Conversion conversion) {
    return conversion == Conversion::none ? 1 : sizeof(uint16_t);
}

size_t converted_bytes(Conversion conversion) {
    return conversion == Conversion::none ? 1 : sizeof(float);
}

OpenFile::OpenFile(int plain, int direct, bool bypasses_cache)
    : plain_(plain), direct_(direct), bypasses_cache_(bypasses_cache), direct_works_(direct >= 0) {}

OpenFile::~OpenFile() {
    ::close(plain_);
    if (direct_ >= 0) {
        ::close(direct_);
    }
}

std::unique_ptr<OpenFile> OpenFile::open(const std::filesystem::path& path, bool bypasses_cache, int& code) {
    // O_NONBLOCK: opening a pipe would wait for a writer; it has no meaning for a regular file.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    int plain = ::open(path.c_str(), kFlags);
    if (plain < 0) {
        code = errno;
        return nullptr;
    }
    struct stat facts;
    if (::fstat(plain, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        code = EINVAL;
        ::close(plain);
        return nullptr;
    }
#if defined(F_NOCACHE)
    if (bypasses_cache) {
        static_cast<void>(::fcntl(plain, F_NOCACHE, 1));
    }
#endif
    int direct = bypasses_cache && kDirect != 0 ? ::open(path.c_str(), kFlags | kDirect) : -1;
    return std::unique_ptr<OpenFile>(new OpenFile(plain, direct, bypasses_cache));
}

std::optional<int> OpenFile::direct() const {
    return direct_works_.load(std::memory_order_relaxed) ? std::optional(direct_) : std::nullopt;
}

Bounce::Bounce() {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kBlockBytes, kBytes) != 0) {
        throw std::bad_alloc();
    }
    data_ = static_cast<char*>(memory);
}

Bounce::~Bounce() {
    ::free(data_);
}

int read_range(const Range& range, const ReadRange& read, Bounce& bounce, const std::atomic<bool>& stops) {
    return Reading(range, read, bounce, stops).run();
}

}  // namespace pomona
