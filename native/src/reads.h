#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ranges.h"

/// Threads that fill the slots of a slab from files, and the account of which slot may be touched by whom.
namespace pomona {

/// Why a slot or a read is not as its caller takes it to be. No message names a file.
class ReadsError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A slot is being filled, or is leased.
class SlotBusy : public ReadsError {
  public:
    explicit SlotBusy(int64_t slot) : ReadsError("slot is in use"), slot(slot) {}

    int64_t slot;
};

/// A slot has been filled anew, or holds nothing.
class SlotStale : public ReadsError {
  public:
    explicit SlotStale(int64_t slot) : ReadsError("slot holds something else"), slot(slot) {}

    int64_t slot;
};

/// A read cannot be what was asked for.
class ReadRejected : public ReadsError {
  public:
    explicit ReadRejected(const char* problem) : ReadsError(problem), problem(problem) {}

    const char* problem;
};

/// The file cannot be opened, or is no regular file.
class FileUnopened : public ReadsError {
  public:
    explicit FileUnopened(int code) : ReadsError("file cannot be opened"), code(code) {}

    int code;  ///< errno
};

/// What a slot is, in the order in which it becomes so.
enum class SlotState {
    idle,     ///< holds nothing
    loading,  ///< is being filled
    ready,    ///< holds what was read
    leased,   ///< the same, and somebody uses it
};

/// How a wait ended.
struct Arrival {
    enum class Kind {
        ready,      ///< everything was read
        failed,     ///< something was not
        cancelled,  ///< nobody wanted it any more
        stale,      ///< the slot has been filled anew since
        waiting,    ///< the time was up
    };
    Kind kind;
    int code;  ///< errno of a failure; ENODATA where the file ends before
};

/// A piece of what a slot gets.
struct Segment {
    int64_t file;  ///< as `Reads::open` numbered it
    int64_t offset;
    int64_t num_bytes;  ///< in the file
    char* destination;
    Conversion conversion;
};

/// Segments that one thread reads one after the other.
using Read = std::vector<Segment>;

/// Fills slots; all of it may be called on any thread.
///
/// A slot is filled by one or more reads. Each filling has a generation, so that whoever waits for it, leases it or
/// cancels it cannot mean a later one.
class Reads {
  public:
    static constexpr size_t kMaxSegments = 8;  // of a read
    static constexpr int kMaxThreads = 64;

    /// @param num_threads that read, from 1 to 64; they start with the first read.
    /// @param bypasses_cache see `OpenFile`.
    /// @param read stands for `pread`.
    Reads(int num_threads, int64_t num_slots, bool bypasses_cache, ReadRange read = ReadRange());
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;
    /// See `close`.
    ~Reads();

    /// Opens a file, which stays open until everything is closed.
    ///
    /// @return its number.
    /// @throws FileUnopened
    int64_t open(const std::filesystem::path& path);

    /// Keeps memory for as long as a thread may write to it.
    void keep(std::shared_ptr<void> memory);

    /// Has a slot filled.
    ///
    /// @return the generation of what it then holds, above 0.
    /// @throws SlotBusy, ReadRejected
    uint64_t fill(int64_t slot, std::vector<Read> reads);

    /// Waits until a slot is filled.
    Arrival wait(int64_t slot, uint64_t generation, std::chrono::milliseconds longest);

    /// Keeps what a slot holds until it is released as often as it was leased.
    ///
    /// @throws SlotStale, ReadRejected
    void lease(int64_t slot, uint64_t generation);

    /// @throws SlotStale where it is not leased, ReadRejected
    void release(int64_t slot, uint64_t generation);

    /// Gives a filling up. A read that is under way ends first; until then the slot is loading. Nothing where it has
    /// ended.
    void cancel(int64_t slot, uint64_t generation);

    /// @throws ReadRejected where there is no such slot.
    SlotState state(int64_t slot) const;

    /// Whether no thread is left.
    bool is_closed() const;

    /// Gives everything up and ends the threads. A thread that hangs in a read is left behind after a while, and holds
    /// its memory until the read ends.
    void close();

  private:
    struct Shared;

    void start_threads();  // with the lock held

    std::shared_ptr<Shared> shared_;
};

}  // namespace pomona
