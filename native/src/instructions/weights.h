#pragma once

#include "vector.h"

/// What a draw reads of a row of logits, written once for any vector (see vector.h).
///
/// Sums go over the lanes of one block of `kDrawBlock` floats and then as a tree: whoever adds the blocks' sums does so
/// in their order.
namespace pomona::vector {

template <class Isa>
float peaks(const float* x, int64_t count, float* peaks) {
    float lowest = -__builtin_inff();
    float most = lowest;
    // In this order `smaller` passes on what is no number, and a sum of what is not positive has no other way to it.
    auto witness = Isa::zero();
    float rest = 0;
    for (int64_t begin = 0; begin < count; begin += kDrawBlock) {
        int64_t end = smaller(begin + kDrawBlock, count);
        auto block = Isa::broadcast(&lowest);
        int64_t i = begin;
        for (; i + Isa::kLanes <= end; i += Isa::kLanes) {
            auto values = Isa::load(x + i);
            block = Isa::larger(block, values);
            witness = Isa::add(witness, Isa::smaller(Isa::zero(), values));
        }
        float peak = Isa::largest(block);
        for (; i < end; ++i) {
            peak = x[i] > peak ? x[i] : peak;
            rest += x[i] < 0 ? 0 : x[i] - x[i];
        }
        peaks[begin / kDrawBlock] = peak;
        most = peak > most ? peak : most;
    }
    float sum = Isa::total(witness) + rest;
    return sum == sum ? most : sum;
}

/// What `exponential` makes of anything far below zero; a weight is 0 there.
template <class Isa>
inline typename Isa::Vec weight_of(typename Isa::Vec x, typename Isa::Vec minus_least) {
    return Isa::larger(Isa::add(exponential<Isa>(x), minus_least), Isa::zero());
}

template <class Isa>
inline typename Isa::Vec minus_least_exponential() {
    return Isa::multiply(exponential<Isa>(constant<Isa>(-87.0f)), constant<Isa>(-1.0f));
}

template <class Isa>
void weigh(const float* x, int64_t count, float shift, float sharpness, float* weights) {
    auto minus_least = minus_least_exponential<Isa>();
    auto minus_shift = constant<Isa>(-shift);
    auto factor = Isa::broadcast(&sharpness);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto values = Isa::multiply(Isa::add(load_some<Isa>(x + i, lanes), minus_shift), factor);
        store_some<Isa>(weights + i, weight_of<Isa>(values, minus_least), lanes);
    });
}

template <class Isa>
void sum_weights(const float* x, int64_t count, float shift, float sharpness, float* sums) {
    auto minus_least = minus_least_exponential<Isa>();
    auto minus_shift = constant<Isa>(-shift);
    auto factor = Isa::broadcast(&sharpness);
    for (int64_t begin = 0; begin < count; begin += kDrawBlock) {
        auto sum = Isa::zero();
        for_vectors<Isa>(smaller(kDrawBlock, count - begin), [&](int64_t i, int64_t lanes) {
            auto values = Isa::multiply(Isa::add(load_some<Isa>(x + begin + i, lanes), minus_shift), factor);
            auto weights = weight_of<Isa>(values, minus_least);
            if (lanes < Isa::kLanes) {
                float some[Isa::kLanes];
                Isa::store(some, weights);
                weights = Isa::load_part(some, lanes);
            }
            sum = Isa::add(sum, weights);
        });
        sums[begin / kDrawBlock] = Isa::total(sum);
    }
}

}  // namespace pomona::vector
