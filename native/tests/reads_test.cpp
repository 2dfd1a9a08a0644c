// Checks the threads that fill slots under reads that break off, are interrupted and fail: `make check-native`.

#include "reads.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"

namespace {

using namespace harness;
using namespace std::chrono_literals;
using pomona::Arrival;
using pomona::Conversion;
using pomona::Read;
using pomona::Reads;
using pomona::Segment;
using pomona::SlotState;

constexpr int64_t kFileBytes = 3 << 20;
constexpr auto kLong = std::chrono::milliseconds(60'000);

/// A file of random bytes that goes with it.
class Source {
  public:
    Source() : bytes_(kFileBytes) {
        std::snprintf(path_, sizeof(path_), "reads_test.XXXXXX");
        int descriptor = ::mkstemp(path_);
        for (char& byte : bytes_) {
            byte = static_cast<char>(random_bits()());
        }
        expect(::write(descriptor, bytes_.data(), bytes_.size()) == kFileBytes, "the file is written");
        ::fsync(descriptor);
        ::close(descriptor);
    }
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    ~Source() { ::unlink(path_); }

    const char* path() const { return path_; }

    const char* at(int64_t offset) const { return bytes_.data() + offset; }

  private:
    char path_[64];
    std::vector<char> bytes_;
};

/// How often reads go wrong, in a hundred.
struct Weather {
    int short_ones;
    int interrupted;
    int failing;
};

/// A `pread` in some weather; the same for every thread, so what it draws is its own.
pomona::ReadRange in(Weather weather) {
    auto number = std::make_shared<std::atomic<uint32_t>>(1);
    return [weather, number](int descriptor, void* bytes, size_t num_bytes, off_t offset) -> ssize_t {
        uint32_t drawn = number->fetch_add(1) * 2654435761u;
        drawn ^= drawn >> 15;
        int chance = static_cast<int>(drawn % 100);
        if (chance < weather.failing) {
            errno = EIO;
            return -1;
        }
        chance -= weather.failing;
        if (chance < weather.interrupted) {
            errno = EINTR;
            return -1;
        }
        chance -= weather.interrupted;
        ssize_t got = ::pread(descriptor, bytes, num_bytes, offset);
        // Whole blocks are asked for, even where fewer bytes are said to have come: past the cache nothing else works.
        bool is_short = got > 0 && chance < weather.short_ones;
        return is_short ? 1 + static_cast<ssize_t>((drawn >> 8) % static_cast<uint32_t>(got)) : got;
    };
}

/// What a slot was last asked to hold.
struct Wanted {
    uint64_t generation = 0;
    std::vector<Read> reads;
};

/// Slots in memory, and what they should hold.
class Bench {
  public:
    Bench(const Source& source, int64_t num_slots, int num_threads, bool bypasses_cache, Weather weather)
        : source_(source), memory_(num_slots * kSlotBytes), wanted_(num_slots) {
        reads = std::make_unique<Reads>(num_threads, num_slots, bypasses_cache, in(weather));
        file_ = reads->open(source.path());
    }

    /// Fills a slot with ranges of any length at any place, converted or not.
    void fill(int64_t slot) {
        std::vector<Read> wanted(1 + random_below(3));
        int64_t place = 0;
        for (Read& read : wanted) {
            for (int segment = 0; segment < 1 + random_below(4); ++segment) {
                read.push_back(any(slot, place));
                place += kPlaceBytes;
            }
        }
        wanted_[slot].generation = reads->fill(slot, wanted);
        wanted_[slot].reads = std::move(wanted);
    }

    bool holds_what_was_wanted(int64_t slot) const {
        for (const Read& read : wanted_[slot].reads) {
            for (const Segment& segment : read) {
                if (!is_right(segment)) {
                    return false;
                }
            }
        }
        return true;
    }

    uint64_t generation(int64_t slot) const { return wanted_[slot].generation; }

    static constexpr int64_t kPlaceBytes = 256 << 10;
    static constexpr int64_t kSlotBytes = 12 * kPlaceBytes;

    std::unique_ptr<Reads> reads;

  private:
    Segment any(int64_t slot, int64_t place) {
        auto conversion = static_cast<Conversion>(random_below(3));
        int64_t num_bytes = random_below(5) == 0 ? random_below(3) * 2 : 2 * random_below(kPlaceBytes / 4);
        int64_t offset = random_below(static_cast<int>(kFileBytes - num_bytes + 1));
        if (random_below(2) == 0) {  // as whole blocks
            offset = offset / 4096 * 4096;
        }
        return {file_, offset, num_bytes, memory_.data() + slot * kSlotBytes + place, conversion};
    }

    bool is_right(const Segment& segment) const {
        const char* from = source_.at(segment.offset);
        if (segment.conversion == Conversion::none) {
            return std::memcmp(segment.destination, from, segment.num_bytes) == 0;
        }
        for (int64_t i = 0; i < segment.num_bytes / 2; ++i) {
            uint16_t bits;
            uint32_t found;
            std::memcpy(&bits, from + 2 * i, sizeof(bits));
            std::memcpy(&found, segment.destination + 4 * i, sizeof(found));
            uint32_t expected = static_cast<uint32_t>(bits) << 16;
            if (segment.conversion == Conversion::from_float16) {
                float value = static_cast<float>(half_of(bits));
                if (value != value) {
                    continue;  // no number has many bits
                }
                std::memcpy(&expected, &value, sizeof(expected));
            }
            if (found != expected) {
                return false;
            }
        }
        return true;
    }

    /// By arithmetic instead of bits.
    static double half_of(uint16_t bits) {
        int exponent = bits >> 10 & 0x1F;
        double fraction = bits & 0x3FF;
        double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
        if (exponent == 31) {
            value = fraction == 0 ? HUGE_VAL : std::nan("");
        }
        return bits & 0x8000 ? -value : value;
    }

    const Source& source_;
    std::vector<char> memory_;
    std::vector<Wanted> wanted_;
    int64_t file_ = 0;
};

/// Fills slots again and again, with leases and cancellations between, and never finds a wrong byte in a ready one.
void check_slots(const Source& source, int num_threads, bool bypasses_cache, Weather weather, bool cancels) {
    constexpr int64_t kSlots = 6;
    Bench bench(source, kSlots, num_threads, bypasses_cache, weather);
    int num_ready = 0, num_failed = 0, num_cancelled = 0;
    for (int round = 0; round < 16; ++round) {
        for (int64_t slot = 0; slot < kSlots; ++slot) {
            bench.fill(slot);
        }
        if (cancels) {
            int64_t slot = random_below(kSlots);
            bench.reads->cancel(slot, bench.generation(slot));
        }
        for (int64_t slot = 0; slot < kSlots; ++slot) {
            Arrival arrival = bench.reads->wait(slot, bench.generation(slot), kLong);
            num_failed += arrival.kind == Arrival::Kind::failed;
            num_cancelled += arrival.kind == Arrival::Kind::cancelled;
            if (arrival.kind == Arrival::Kind::ready) {
                ++num_ready;
                expect(bench.holds_what_was_wanted(slot), "a ready slot holds what was wanted");
                bench.reads->lease(slot, bench.generation(slot));
                bench.reads->release(slot, bench.generation(slot));
            } else {
                expect(bench.reads->state(slot) == SlotState::idle, "a slot that was not filled is idle");
                expect(arrival.code == (arrival.kind == Arrival::Kind::failed ? EIO : 0), "a failure says its code");
            }
        }
    }
    expect(num_ready > 0, "some are filled");
    expect((num_failed > 0) == (weather.failing > 0), "reads fail where they are made to");
    expect(cancels || num_cancelled == 0, "nothing is cancelled by itself");
}

void check_states(const Source& source) {
    Bench bench(source, 2, 2, true, {0, 0, 0});
    Reads& reads = *bench.reads;
    expect(reads.state(0) == SlotState::idle, "a slot begins idle");
    bench.fill(0);
    expect(reads.wait(0, bench.generation(0), kLong).kind == Arrival::Kind::ready, "it is filled");
    expect(reads.state(0) == SlotState::ready, "and ready");
    uint64_t first = bench.generation(0);
    reads.lease(0, first);
    reads.lease(0, first);
    expect(reads.state(0) == SlotState::leased, "it is leased");
    try {
        bench.fill(0);
        expect(false, "a leased slot is not filled");
    } catch (const pomona::SlotBusy&) {
    }
    reads.release(0, first);
    expect(reads.state(0) == SlotState::leased, "as often as it was leased");
    reads.release(0, first);
    bench.fill(0);
    expect(reads.wait(0, first, kLong).kind == Arrival::Kind::stale, "who means the one before is told");
    expect(reads.wait(0, bench.generation(0), kLong).kind == Arrival::Kind::ready, "it is filled anew");
    for (auto act : {&Reads::lease, &Reads::release}) {
        try {
            (reads.*act)(0, first);
            expect(false, "what is gone is not leased");
        } catch (const pomona::SlotStale&) {
        }
    }
    reads.cancel(0, bench.generation(0));
    expect(reads.state(0) == SlotState::ready, "what has ended is not cancelled");
}

/// A read that hangs keeps its slot until it ends, and nobody waits for it longer than they want.
void check_a_read_that_hangs(const Source& source) {
    std::atomic<bool> hangs{true};
    std::vector<char> memory(64);
    Reads reads(1, 2, false, [&](int descriptor, void* bytes, size_t num_bytes, off_t offset) {
        while (hangs) {
            std::this_thread::sleep_for(1ms);
        }
        return ::pread(descriptor, bytes, num_bytes, offset);
    });
    int64_t file = reads.open(source.path());
    uint64_t first = reads.fill(0, {{{file, 0, 32, memory.data(), Conversion::none}}});
    uint64_t second = reads.fill(1, {{{file, 0, 32, memory.data() + 32, Conversion::none}}});
    expect(reads.wait(0, first, 20ms).kind == Arrival::Kind::waiting, "the time is up");
    try {
        reads.fill(0, {{{file, 0, 32, memory.data(), Conversion::none}}});
        expect(false, "a slot that is being filled is not filled");
    } catch (const pomona::SlotBusy&) {
    }
    reads.cancel(0, first);
    reads.cancel(1, second);
    expect(reads.state(1) == SlotState::idle, "what was not begun is given up at once");
    expect(reads.state(0) == SlotState::loading, "what hangs is not");
    hangs = false;
    expect(reads.wait(0, first, kLong).kind == Arrival::Kind::cancelled, "until it ends");
    expect(reads.state(0) == SlotState::idle, "and then its slot is free");
}

void check_ends_and_refusals(const Source& source) {
    std::vector<char> memory(4 * 4096);
    for (bool bypasses_cache : {false, true}) {
        Reads reads(3, 1, bypasses_cache);
        int64_t file = reads.open(source.path());
        for (int64_t missing : {int64_t{1}, int64_t{4000}, int64_t{5000}}) {
            for (auto conversion : {Conversion::none, Conversion::from_float16}) {
                uint64_t filling =
                    reads.fill(0, {{{file, kFileBytes - 6000 + missing, 6000, memory.data(), conversion}}});
                Arrival arrival = reads.wait(0, filling, kLong);
                expect(arrival.kind == Arrival::Kind::failed && arrival.code == ENODATA, "the end of a file is told");
            }
        }
        auto is_refused = [&](std::vector<Read> wanted) {
            try {
                reads.fill(0, std::move(wanted));
                return false;
            } catch (const pomona::ReadRejected&) {
                return true;
            }
        };
        Segment right{file, 0, 2, memory.data(), Conversion::none};
        expect(is_refused({}), "nothing is no read");
        expect(is_refused({{}}), "nor is a read of nothing");
        expect(is_refused({Read(Reads::kMaxSegments + 1, right)}), "nor one of nine segments");
        expect(is_refused({{{file + 1, 0, 2, memory.data(), Conversion::none}}}), "there is no such file");
        expect(is_refused({{{file, -1, 2, memory.data(), Conversion::none}}}), "offsets begin at 0");
        expect(is_refused({{{file, INT64_MAX - 1, 2, memory.data(), Conversion::none}}}), "and do not overflow");
        expect(is_refused({{{file, 0, 3, memory.data(), Conversion::from_bfloat16}}}), "half a number is none");
    }
    try {
        Reads(1, 1, true).open("no such file");
        expect(false, "a file that is not there is not opened");
    } catch (const pomona::FileUnopened& error) {
        expect(error.code == ENOENT, "and it is told why");
    }
    try {
        Reads(1, 1, true).open("/dev/null");
        expect(false, "a device is not opened");
    } catch (const pomona::FileUnopened& error) {
        expect(error.code == EINVAL, "and it is told why");
    }
}

/// Closing amid reads leaves neither a thread nor a wrong slot.
void check_close(const Source& source) {
    for (int round = 0; round < 20; ++round) {
        Bench bench(source, 8, 4, round % 2 == 0, {10, 10, 0});
        for (int64_t slot = 0; slot < 8; ++slot) {
            bench.fill(slot);
        }
        std::thread waiter([&] { bench.reads->wait(7, bench.generation(7), kLong); });
        bench.reads->close();
        waiter.join();
        expect(bench.reads->is_closed(), "no thread is left");
        for (int64_t slot = 0; slot < 8; ++slot) {
            bool is_whole = bench.reads->state(slot) == SlotState::ready;
            expect(!is_whole || bench.holds_what_was_wanted(slot), "what is ready is whole");
        }
        bench.reads->close();
    }
}

/// Many threads wait for, lease and cancel at once.
void check_many_callers(const Source& source) {
    Bench bench(source, 4, 3, true, {20, 20, 1});
    std::vector<std::thread> callers;
    for (int64_t slot = 0; slot < 4; ++slot) {
        bench.fill(slot);
    }
    for (int64_t slot = 0; slot < 4; ++slot) {
        uint64_t generation = bench.generation(slot);
        callers.emplace_back([&bench, slot, generation] {
            Arrival arrival = bench.reads->wait(slot, generation, kLong);
            for (int i = 0; i < 50 && arrival.kind == Arrival::Kind::ready; ++i) {
                bench.reads->lease(slot, generation);
                bench.reads->release(slot, generation);
            }
        });
        callers.emplace_back([&bench, slot, generation] {
            static_cast<void>(bench.reads->state(slot));
            if (slot % 2 == 0) {
                bench.reads->cancel(slot, generation);
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
}

}  // namespace

int main() {
    Source source;
    for (int num_threads : {1, 4}) {
        for (bool bypasses_cache : {false, true}) {
            check_slots(source, num_threads, bypasses_cache, {0, 0, 0}, false);
            check_slots(source, num_threads, bypasses_cache, {50, 20, 0}, false);
            check_slots(source, num_threads, bypasses_cache, {50, 20, 4}, true);
        }
    }
    check_states(source);
    check_a_read_that_hangs(source);
    check_ends_and_refusals(source);
    check_close(source);
    for (int round = 0; round < 10; ++round) {
        check_many_callers(source);
    }
    return summary();
}
