#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pomona {

/// Threads that share the pieces of one job.
///
/// The caller works too, so a pool of n threads starts n - 1, at the first job that needs them. Pieces are taken one
/// by one, so a thread that the system keeps from its core holds back one piece only. Between jobs a thread watches
/// for the next one briefly, giving its core to whoever wants it, and then sleeps.
class Pool {
  public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    /// The pool of this process. It is never destroyed: its threads may outlive the static objects. A child that was
    /// forked has no threads, and gets a pool of its own.
    static Pool& shared();

    /// Threads that work on a job, the caller among them.
    int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

    /// Changes how many threads work on a job, from the next one on; waits for the one under way.
    /// @param num_threads 1 or more.
    void resize(int num_threads);

    /// Calls act(piece) once for every piece from 0 to num_pieces - 1, on whichever thread, and returns when all are
    /// done. `act` must not throw and must not call `run`. While another thread's job is under way, the caller does
    /// its own alone: more threads than cores would help neither.
    template <class Act>
    void run(int64_t num_pieces, const Act& act) {
        run(num_pieces, [](const void* context, int64_t piece) { (*static_cast<const Act*>(context))(piece); }, &act);
    }

  private:
    using Task = void (*)(const void* context, int64_t piece);

    void run(int64_t num_pieces, Task task, const void* context);
    void share(uint32_t num_pieces, Task task, const void* context);
    bool work();
    bool has_work() const;
    bool watch();
    void serve();
    void start();
    void stop();

    std::mutex busy_;  // held by whoever runs a job or changes the threads
    std::atomic<int> num_threads_;
    std::vector<std::thread> threads_;

    // The job under way. `ticket_` holds its number in the upper half and the pieces not yet taken in the lower; the
    // rest is written before the ticket and read after a piece was taken, which keeps the job from ending.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    Task task_ = nullptr;
    const void* context_ = nullptr;
    uint32_t num_pieces_ = 0;
    alignas(64) std::atomic<uint32_t> num_done_{0};

    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> stopping_{false};
};

}  // namespace pomona
