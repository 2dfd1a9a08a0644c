#include "rows.h"

#include <memory>
#include <new>

namespace pomona {

float* scratch(size_t num_floats) {
    constexpr std::align_val_t kAlignment{64};
    struct Free {
        void operator()(float* memory) const { ::operator delete[](memory, kAlignment); }
    };
    thread_local std::unique_ptr<float[], Free> memory;
    thread_local size_t capacity = 0;
    if (num_floats > capacity) {
        memory.reset();
        capacity = 0;
        memory.reset(static_cast<float*>(::operator new[](num_floats * sizeof(float), kAlignment)));
        capacity = num_floats;
    }
    return memory.get();
}

}  // namespace pomona
