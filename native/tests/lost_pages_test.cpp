#include "lost_pages.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "harness.h"
#include "mapped_ranges.h"
#include "pool.h"

using harness::expect;

namespace {

constexpr size_t kBytes = 1 << 16;
constexpr int kExitCode = 3;

/// Notes and forgets ranges on several threads at once, each of them several at a time.
void check_threads() {
    std::vector<std::thread> threads;
    for (uintptr_t thread = 1; thread <= 4; ++thread) {
        threads.emplace_back([thread] {
            for (int round = 0; round < 2000; ++round) {
                auto* first = pomona::note_range(reinterpret_cast<void*>(thread << 32), kBytes);
                auto* second = pomona::note_range(reinterpret_cast<void*>(thread << 33), kBytes);
                expect(first != second, "two ranges have a node each");
                expect(first->begin.load() == thread << 32, "nobody else uses a node that is taken");
                pomona::forget_range(first);
                pomona::forget_range(second);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
}

void check_places() {
    char bytes[64];
    pomona::MappedRange* range = pomona::note_range(bytes, sizeof bytes);
    expect(pomona::range_at(bytes) == range && pomona::range_at(bytes + 63) == range,
           "a noted range is mapped from end to end");
    expect(!pomona::range_at(bytes + 64) && !pomona::range_at(bytes - 1), "what is beside it is not");
    pomona::forget_range(range);
    expect(!pomona::range_at(bytes), "a forgotten range is not mapped");
}

void check_presence() {
    std::FILE* file = std::tmpfile();
    std::vector<char> content(kBytes * 100, 'x');
    expect(std::fwrite(content.data(), content.size(), 1, file) == 1 && std::fflush(file) == 0, "a file is written");
    void* pages = ::mmap(nullptr, content.size(), PROT_READ, MAP_SHARED, ::fileno(file), 0);
    const char* inner = static_cast<const char*>(pages) + 100;
    pomona::MappedRange* range = pomona::note_range(pages, content.size());
    expect(!pomona::bring_in(*range, inner, content.size() - 200), "nothing of a file just written is missing");
    pomona::forget_range(range);
    range = pomona::note_range(pages, content.size(), false);
    expect(!pomona::bring_in(*range, inner, content.size() - 200), "where the system does not tell, nothing is said");
    pomona::forget_range(range);
    expect(pomona::may_be_missing(), "at first, pages may be missing");
    for (int time = 0; time < 300; ++time) {
        pomona::note_presence(false);
    }
    expect(!pomona::may_be_missing(), "nobody asks where none was missing for long");
    pomona::note_presence(true);
    expect(pomona::may_be_missing(), "where one was, more may be");
    ::munmap(pages, content.size());
    std::fclose(file);
}

void read(const char* page) {
    volatile char value = *static_cast<const volatile char*>(page);
    static_cast<void>(value);
}

void read_here(const char* page) {
    read(page);
}

/// Reads on the thread of a pool that is not this one.
void read_on_a_pool(const char* page) {
    pomona::Pool pool(2);
    std::thread::id own = std::this_thread::get_id();
    pool.run(2, [&](int64_t) {
        if (std::this_thread::get_id() != own) {
            read(page);
        } else {
            std::this_thread::sleep_for(std::chrono::seconds(5));
        }
    });
}

/// Runs in a child: reads a mapped page that its file no longer has.
template <class Read>
[[noreturn]] void lose_a_page(int words, const Read& read) {
    ::dup2(words, STDERR_FILENO);
    std::FILE* file = std::tmpfile();
    bool is_there = ::ftruncate(::fileno(file), kBytes) == 0;
    void* pages = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, ::fileno(file), 0);
    pomona::note_range(pages, kBytes);
    is_there = pomona::end_on_lost_pages("lost", kExitCode) && ::ftruncate(::fileno(file), 0) == 0 && is_there;
    read(static_cast<const char*>(pages) + kBytes / 2);
    ::_exit(is_there ? 98 : 99);
}

template <class Read>
void check_end(const Read& read, const std::string& where) {
    int pipe[2];
    expect(::pipe(pipe) == 0, "a pipe is made");
    pid_t child = ::fork();
    if (child == 0) {
        lose_a_page(pipe[1], read);
    }
    ::close(pipe[1]);
    int status = 0;
    ::waitpid(child, &status, 0);
    char said[16] = {};
    bool is_said = ::read(pipe[0], said, sizeof said - 1) == 5 && std::strcmp(said, "lost\n") == 0;
    ::close(pipe[0]);
    expect(is_said, "the last words are said " + where);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == kExitCode,
           "a lost page ends the process with its code " + where);
}

}  // namespace

int main(int count, char** arguments) {
    check_threads();
    check_places();
    check_presence();
    if (count < 2 || std::strcmp(arguments[1], "--no-fork") != 0) {
        check_end(read_here, "here");
        check_end(read_on_a_pool, "on a pool");
    }
    return harness::summary();
}
