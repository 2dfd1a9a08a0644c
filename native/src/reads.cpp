#include "reads.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace pomona {

namespace {

constexpr auto kCloseTime = std::chrono::seconds(5);

struct Slot {
    SlotState state = SlotState::idle;
    uint64_t generation = 0;
    size_t reads_left = 0;
    int code = 0;
    bool is_cancelled = false;
    int64_t num_leases = 0;
    std::atomic<bool> stops{false};
};

struct Job {
    int64_t slot;
    Read read;
};

}  // namespace

struct Reads::Shared {
    Shared(int64_t num_slots, bool bypasses_cache, ReadRange read)
        : bypasses_cache(bypasses_cache), read(std::move(read)), slots(num_slots) {}

    /// The life of a thread.
    void serve() {
        std::unique_ptr<Bounce> bounce;
        std::unique_lock lock(mutex);
        while (true) {
            work.wait(lock, [this] { return is_closing || !jobs.empty(); });
            if (is_closing) {
                break;
            }
            Job job = std::move(jobs.front());
            jobs.pop_front();
            lock.unlock();
            int code = perform(job, bounce);
            lock.lock();
            finish(job.slot, code);
        }
        --num_running;
        done.notify_all();
    }

    int perform(const Job& job, std::unique_ptr<Bounce>& bounce) {
        try {
            if (bounce == nullptr) {
                bounce = std::make_unique<Bounce>();
            }
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
        for (const Segment& segment : job.read) {
            Range range{
                files_at(segment.file), segment.offset, segment.num_bytes, segment.destination, segment.conversion};
            int code = read_range(range, read, *bounce, slots[job.slot].stops);
            if (code != 0) {
                return code;
            }
        }
        return 0;
    }

    OpenFile* files_at(int64_t number) {
        std::lock_guard lock(mutex);
        return files[number].get();
    }

    /// Notes the end of one of a slot's reads, with the lock held. After a failure the others are not begun.
    void finish(int64_t number, int code) {
        Slot& slot = slots[number];
        --slot.reads_left;
        if (code != 0 && slot.code == 0 && !slot.is_cancelled) {
            slot.code = code;
            drop_jobs(number);
        }
        settle(slot);
    }

    void drop_jobs(int64_t number) {
        Slot& slot = slots[number];
        slot.stops = true;
        auto is_its = [number](const Job& job) { return job.slot == number; };
        auto end = std::remove_if(jobs.begin(), jobs.end(), is_its);
        slot.reads_left -= static_cast<size_t>(jobs.end() - end);
        jobs.erase(end, jobs.end());
    }

    void settle(Slot& slot) {
        if (slot.reads_left > 0) {
            return;
        }
        bool is_whole = slot.code == 0 && !slot.is_cancelled;
        slot.state = is_whole ? SlotState::ready : SlotState::idle;
        done.notify_all();
    }

    Slot& at(int64_t number) {
        if (number < 0 || number >= static_cast<int64_t>(slots.size())) {
            throw ReadRejected("there is no such slot");
        }
        return slots[number];
    }

    void check(const std::vector<Read>& reads) const {
        if (reads.empty()) {
            throw ReadRejected("nothing is to be read");
        }
        for (const Read& read : reads) {
            if (read.empty() || read.size() > kMaxSegments) {
                throw ReadRejected("a read has no segments, or more than eight");
            }
            for (const Segment& segment : read) {
                check(segment);
            }
        }
    }

    void check(const Segment& segment) const {
        if (segment.file < 0 || segment.file >= static_cast<int64_t>(files.size())) {
            throw ReadRejected("there is no such file");
        }
        constexpr int64_t kLast = std::numeric_limits<int64_t>::max() - static_cast<int64_t>(Bounce::kBytes);
        bool is_range = segment.offset >= 0 && segment.num_bytes >= 0 && segment.offset <= kLast - segment.num_bytes;
        if (!is_range || segment.num_bytes % static_cast<int64_t>(stored_bytes(segment.conversion)) != 0) {
            throw ReadRejected("a range cannot be that of such numbers");
        }
    }

    const bool bypasses_cache;
    const ReadRange read;
    mutable std::mutex mutex;
    std::condition_variable work;
    std::condition_variable done;
    std::vector<Slot> slots;  // never resized
    std::deque<Job> jobs;
    std::vector<std::unique_ptr<OpenFile>> files;
    std::vector<std::shared_ptr<void>> memory;
    std::vector<std::thread> threads;
    int num_threads = 0;  // that there are to be
    int num_running = 0;
    bool is_closing = false;
};

Reads::Reads(int num_threads, int64_t num_slots, bool bypasses_cache, ReadRange read) {
    if (num_threads < 1 || num_threads > kMaxThreads || num_slots < 1) {
        throw ReadRejected("there must be 1 to 64 threads, and a slot");
    }
    shared_ = std::make_shared<Shared>(num_slots, bypasses_cache, read ? std::move(read) : ReadRange(::pread));
    shared_->num_threads = num_threads;
}

Reads::~Reads() {
    close();
}

int64_t Reads::open(const std::filesystem::path& path) {
    int code = 0;
    std::unique_ptr<OpenFile> file = OpenFile::open(path, shared_->bypasses_cache, code);
    if (file == nullptr) {
        throw FileUnopened(code);
    }
    std::lock_guard lock(shared_->mutex);
    shared_->files.push_back(std::move(file));
    return static_cast<int64_t>(shared_->files.size()) - 1;
}

void Reads::keep(std::shared_ptr<void> memory) {
    std::lock_guard lock(shared_->mutex);
    shared_->memory.push_back(std::move(memory));
}

namespace {

/// Starts a thread on which no signals are handled: they are for the threads that know of them.
template <class Act>
std::thread start(Act act) {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(std::move(act));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace

void Reads::start_threads() {
    while (static_cast<int>(shared_->threads.size()) < shared_->num_threads) {
        try {
            shared_->threads.push_back(start([shared = shared_] { shared->serve(); }));
        } catch (const std::system_error&) {
            if (shared_->threads.empty()) {
                throw;
            }
            return;  // fewer read as well
        }
        ++shared_->num_running;
    }
}

uint64_t Reads::fill(int64_t number, std::vector<Read> reads) {
    std::lock_guard lock(shared_->mutex);
    Slot& slot = shared_->at(number);
    shared_->check(reads);
    if (shared_->is_closing) {
        throw ReadRejected("no more is read");
    }
    if (slot.state == SlotState::loading || slot.state == SlotState::leased) {
        throw SlotBusy(number);
    }
    start_threads();
    slot.state = SlotState::loading;
    ++slot.generation;
    slot.reads_left = reads.size();
    slot.code = 0;
    slot.is_cancelled = false;
    slot.stops = false;
    for (Read& read : reads) {
        shared_->jobs.push_back({number, std::move(read)});
    }
    shared_->work.notify_all();
    return slot.generation;
}

Arrival Reads::wait(int64_t number, uint64_t generation, std::chrono::milliseconds longest) {
    std::unique_lock lock(shared_->mutex);
    Slot& slot = shared_->at(number);
    auto has_ended = [&] { return slot.generation != generation || slot.state != SlotState::loading; };
    if (!shared_->done.wait_for(lock, longest, has_ended)) {
        return {Arrival::Kind::waiting, 0};
    }
    if (slot.generation != generation) {
        return {Arrival::Kind::stale, 0};
    }
    if (slot.is_cancelled) {
        return {Arrival::Kind::cancelled, 0};
    }
    return slot.code != 0 ? Arrival{Arrival::Kind::failed, slot.code} : Arrival{Arrival::Kind::ready, 0};
}

void Reads::lease(int64_t number, uint64_t generation) {
    std::lock_guard lock(shared_->mutex);
    Slot& slot = shared_->at(number);
    bool is_whole = slot.state == SlotState::ready || slot.state == SlotState::leased;
    if (slot.generation != generation || !is_whole) {
        throw SlotStale(number);
    }
    ++slot.num_leases;
    slot.state = SlotState::leased;
}

void Reads::release(int64_t number, uint64_t generation) {
    std::lock_guard lock(shared_->mutex);
    Slot& slot = shared_->at(number);
    if (slot.generation != generation || slot.num_leases == 0) {
        throw SlotStale(number);
    }
    if (--slot.num_leases == 0) {
        slot.state = SlotState::ready;
    }
}

void Reads::cancel(int64_t number, uint64_t generation) {
    std::lock_guard lock(shared_->mutex);
    Slot& slot = shared_->at(number);
    if (slot.generation == generation && slot.state == SlotState::loading) {
        slot.is_cancelled = true;
        shared_->drop_jobs(number);
        shared_->settle(slot);
    }
}

SlotState Reads::state(int64_t number) const {
    std::lock_guard lock(shared_->mutex);
    return shared_->at(number).state;
}

bool Reads::is_closed() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->is_closing && shared_->num_running == 0;
}

void Reads::close() {
    std::vector<std::thread> threads;
    bool all_ended;
    {
        std::unique_lock lock(shared_->mutex);
        shared_->is_closing = true;
        for (size_t number = 0; number < shared_->slots.size(); ++number) {
            Slot& slot = shared_->slots[number];
            if (slot.state == SlotState::loading) {
                slot.is_cancelled = true;
                shared_->drop_jobs(static_cast<int64_t>(number));
                shared_->settle(slot);
            }
        }
        shared_->work.notify_all();
        threads.swap(shared_->threads);
        all_ended =
            threads.empty() || shared_->done.wait_for(lock, kCloseTime, [this] { return shared_->num_running == 0; });
    }
    for (std::thread& thread : threads) {
        if (all_ended) {
            thread.join();
        } else {
            thread.detach();  // what it touches is shared with it
        }
    }
}

}  // namespace pomona
