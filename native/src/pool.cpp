#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace pomona {

namespace {

using Clock = std::chrono::steady_clock;

// A step calls for the next product within some ten microseconds; to wake a thread costs more than that.
constexpr auto kWatchTime = std::chrono::microseconds(200);
constexpr int kPausesPerLook = 128;  // between looks at the clock and at who else wants the core: a few microseconds
constexpr uint64_t kPiecesMask = 0xFFFFFFFF;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int available_cores() {
#if defined(__linux__)
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof(cores), &cores) == 0) {
        return std::max(1, CPU_COUNT(&cores));
    }
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<Pool*> shared_pool{nullptr};
std::atomic<int> shared_size{0};

// The child of a fork has the memory of the pool but none of its threads, and its locks as they happened to be.
void forget_pool() {
    if (Pool* pool = shared_pool.exchange(nullptr)) {
        shared_size.store(pool->num_threads());
    }
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads) {}

Pool::~Pool() {
    stop();
}

Pool& Pool::shared() {
    static const int registered = ::pthread_atfork(nullptr, nullptr, forget_pool);
    static_cast<void>(registered);
    Pool* pool = shared_pool.load(std::memory_order_acquire);
    if (pool) {
        return *pool;
    }
    int size = shared_size.load();
    auto* made = new Pool(size > 0 ? size : available_cores());
    if (shared_pool.compare_exchange_strong(pool, made)) {
        return *made;
    }
    delete made;  // another thread was first
    return *pool;
}

void Pool::resize(int num_threads) {
    std::lock_guard busy(busy_);
    if (num_threads != num_threads_) {
        stop();
        num_threads_ = num_threads;
    }
}

void Pool::run(int64_t num_pieces, Task task, const void* context) {
    constexpr int64_t kMostPieces = std::numeric_limits<int32_t>::max();
    std::unique_lock busy(busy_, std::defer_lock);
    if (num_pieces > 1 && num_pieces <= kMostPieces && num_threads() > 1 && busy.try_lock()) {
        share(static_cast<uint32_t>(num_pieces), task, context);
        return;
    }
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
        task(context, piece);
    }
}

void Pool::share(uint32_t num_pieces, Task task, const void* context) {
    start();
    task_ = task;
    context_ = context;
    num_pieces_ = num_pieces;
    num_done_.store(0, std::memory_order_relaxed);
    uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(job << 32 | num_pieces);  // sequentially consistent, as is the count of sleepers: one sees the other
    if (num_sleeping_.load() > 0) {
        {
            std::lock_guard lock(sleep_);
        }  // whoever is about to sleep has looked at the ticket, or will
        wake_.notify_all();
    }
    while (work()) {
    }
    for (int pauses = 0; num_done_.load(std::memory_order_acquire) != num_pieces; ++pauses) {
        pause();
        if (pauses % kPausesPerLook == kPausesPerLook - 1) {
            ::sched_yield();
        }
    }
}

/// Takes a piece and does it.
/// @return false where none was left.
bool Pool::work() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
        if ((ticket & kPiecesMask) == 0) {
            return false;
        }
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    task_(context_, num_pieces_ - static_cast<int64_t>(ticket & kPiecesMask));
    num_done_.fetch_add(1, std::memory_order_release);
    return true;
}

bool Pool::has_work() const {
    return (ticket_.load() & kPiecesMask) != 0 || stopping_.load();
}

/// Watches for work for a while.
/// @return false where none came.
bool Pool::watch() {
    Clock::time_point end = Clock::now() + kWatchTime;
    do {
        for (int pauses = 0; pauses < kPausesPerLook; ++pauses) {
            if (has_work()) {
                return true;
            }
            pause();
        }
        ::sched_yield();
    } while (Clock::now() < end);
    return false;
}

/// The life of a thread.
void Pool::serve() {
    while (!stopping_.load()) {
        if (work() || watch()) {
            continue;
        }
        std::unique_lock lock(sleep_);
        ++num_sleeping_;
        wake_.wait(lock, [this] { return has_work(); });
        --num_sleeping_;
    }
}

void Pool::start() {
    if (!threads_.empty()) {
        return;
    }
    sigset_t all, before;
    ::sigfillset(&all);
    ::sigdelset(&all, SIGBUS);  // comes to the thread that read a lost page, and kills where it is blocked
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // others are for the threads that know of them
    for (int i = 1; i < num_threads_; ++i) {
        threads_.emplace_back([this] { serve(); });
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::stop() {
    {
        std::lock_guard lock(sleep_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
    threads_.clear();
    stopping_ = false;
}

}  // namespace pomona
