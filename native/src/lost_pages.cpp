#include "lost_pages.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "mapped_ranges.h"

namespace pomona {

namespace {

// What the handler needs, written before it is installed and never after.
char last_words_text[kMaxLastWords + 1];
size_t last_words_bytes = 0;
int end_code = 0;
struct sigaction former;
std::atomic_flag is_installed = ATOMIC_FLAG_INIT;

/// Calls nothing but what POSIX allows a handler to call.
void on_bus_error(int number, siginfo_t* facts, void*) {
    // A signal that a process sent, with kill(2), has no address.
    bool is_sent = facts->si_code <= 0;
    if (!is_sent && range_at(facts->si_addr) != nullptr) {
        size_t written = 0;
        while (written < last_words_bytes) {
            ssize_t count = ::write(STDERR_FILENO, last_words_text + written, last_words_bytes - written);
            if (count <= 0) {
                break;
            }
            written += static_cast<size_t>(count);
        }
        ::_exit(end_code);
    }
    // As before; the instruction that failed fails again, and a signal that was sent is sent again.
    ::sigaction(number, &former, nullptr);
    if (is_sent) {
        ::raise(number);
    }
}

}  // namespace

bool end_on_lost_pages(const std::string& last_words, int exit_code) {
    if (is_installed.test_and_set()) {
        return true;
    }
    size_t length = std::min(last_words.size(), kMaxLastWords);
    std::memcpy(last_words_text, last_words.data(), length);
    last_words_text[length] = '\n';
    last_words_bytes = length + 1;
    end_code = exit_code;
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    if (::sigaction(SIGBUS, &action, &former) != 0) {
        is_installed.clear();
        return false;
    }
    return true;
}

}  // namespace pomona
