#include "instruction_set.h"

#include <atomic>

namespace pomona {

namespace {

bool runs_avx512() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

bool runs_avx2() {
#if defined(__x86_64__)
    // F16C is older than AVX2 and not a name that every compiler knows here.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

std::atomic<const Instructions*>& chosen() {
    static std::atomic<const Instructions*> instructions = available_instructions().front();
    return instructions;
}

}  // namespace

std::vector<const Instructions*> available_instructions() {
    std::vector<const Instructions*> available;
    if (runs_avx512() && avx512_instructions()) {
        available.push_back(avx512_instructions());
    }
    if (runs_avx2() && avx2_instructions()) {
        available.push_back(avx2_instructions());
    }
    if (neon_instructions()) {
        available.push_back(neon_instructions());
    }
    available.push_back(portable_instructions());
    return available;
}

const Instructions& instructions() {
    return *chosen().load(std::memory_order_acquire);
}

bool choose_instructions(std::string_view name) {
    for (const Instructions* instructions : available_instructions()) {
        if (name == instructions->name) {
            chosen().store(instructions, std::memory_order_release);
            return true;
        }
    }
    return false;
}

}  // namespace pomona
