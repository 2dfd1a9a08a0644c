#pragma once

#include "../kernels.h"

/// The kernels, written once for any vector. Each file of this folder is compiled with flags of its own and
/// instantiates them with a type that no other file can name: code for one processor must never be shared by the
/// linker with another. So no function of the standard library is called here either.
///
/// `Isa` offers: `Vec`, `kLanes`, `zero`, `load`, `store`, `broadcast`, `fma(a, b, c) = a * b + c`, `add`, `multiply`,
/// `divide`, `larger`, `smaller`, `load_part` and `store_part` (some lanes, the others zero and unchanged),
/// `scaled(a, n)` (a times 2 to the n, n an integer that was made by adding `kIntegerMaker`), `total` and `largest` (of
/// a vector's lanes), and `totals` (of as many vectors as there are lanes, one a lane).

#if defined(__clang__)
#define POMONA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define POMONA_UNROLL _Pragma("GCC unroll 32")
#endif

namespace pomona::vector {

/// 1.5 * 2^23: what a float has after it was added is rounded to an integer, which stands in its lowest bits.
constexpr float kIntegerMaker = 12582912.0f;

POMONA_INLINE int64_t smaller(int64_t left, int64_t right) {
    return left < right ? left : right;
}

template <class Isa>
inline typename Isa::Vec constant(float value) {
    return Isa::broadcast(&value);
}

/// e to the x, for x between -87 and 88 and as if there for any other; within 2e-7 of it, relative.
template <class Isa>
inline typename Isa::Vec exponential(typename Isa::Vec x) {
    x = Isa::larger(Isa::smaller(x, constant<Isa>(88.0f)), constant<Isa>(-87.0f));
    auto maker = constant<Isa>(kIntegerMaker);
    auto made = Isa::fma(x, constant<Isa>(1.44269504f), maker);  // x / ln 2, rounded
    auto twos = Isa::add(made, constant<Isa>(-kIntegerMaker));
    // ln 2 in two parts, of which the first has few bits, so that its product is exact
    auto rest = Isa::fma(twos, constant<Isa>(-0.693145752f), x);
    rest = Isa::fma(twos, constant<Isa>(-1.42860677e-6f), rest);
    auto sum = constant<Isa>(1.0f / 720);  // Taylor's series: |rest| is at most ln 2 / 2
    sum = Isa::fma(sum, rest, constant<Isa>(1.0f / 120));
    sum = Isa::fma(sum, rest, constant<Isa>(1.0f / 24));
    sum = Isa::fma(sum, rest, constant<Isa>(1.0f / 6));
    sum = Isa::fma(sum, rest, constant<Isa>(0.5f));
    sum = Isa::fma(sum, rest, constant<Isa>(1.0f));
    sum = Isa::fma(sum, rest, constant<Isa>(1.0f));
    return Isa::scaled(sum, made);
}

/// Calls act(place, count) for every vector of a row; `count` is less than the lanes only for the last.
template <class Isa, class Act>
inline void for_vectors(int64_t width, Act act) {
    for (int64_t i = 0; i < width; i += Isa::kLanes) {
        act(i, smaller(Isa::kLanes, width - i));
    }
}

template <class Isa>
inline typename Isa::Vec load_some(const float* from, int64_t count) {
    return count == Isa::kLanes ? Isa::load(from) : Isa::load_part(from, count);
}

template <class Isa>
inline void store_some(float* to, typename Isa::Vec values, int64_t count) {
    if (count == Isa::kLanes) {
        Isa::store(to, values);
    } else {
        Isa::store_part(to, values, count);
    }
}

template <class Isa>
void normalize(const float* x, const float* weight, float epsilon, int64_t width, float* y) {
    auto squares = Isa::zero();
    for_vectors<Isa>(width, [&](int64_t i, int64_t count) {
        auto values = load_some<Isa>(x + i, count);
        squares = Isa::fma(values, values, squares);
    });
    float mean = Isa::total(squares) / static_cast<float>(width) + epsilon;
    auto factor = constant<Isa>(1.0f / __builtin_sqrtf(mean));
    for_vectors<Isa>(width, [&](int64_t i, int64_t count) {
        auto values = Isa::multiply(load_some<Isa>(x + i, count), factor);
        store_some<Isa>(y + i, Isa::multiply(values, load_some<Isa>(weight + i, count)), count);
    });
}

template <class Isa>
void center(const float* x, const float* weight, const float* bias, float epsilon, int64_t width, float* y) {
    auto values = Isa::zero();
    for_vectors<Isa>(width, [&](int64_t i, int64_t count) { values = Isa::add(values, load_some<Isa>(x + i, count)); });
    float mean = Isa::total(values) / static_cast<float>(width);
    auto minus_mean = constant<Isa>(-mean);
    auto squares = Isa::zero();
    int64_t whole = width - width % Isa::kLanes;
    for_vectors<Isa>(whole, [&](int64_t i, int64_t) {
        auto distance = Isa::add(Isa::load(x + i), minus_mean);
        squares = Isa::fma(distance, distance, squares);
    });
    float sum = Isa::total(squares);
    for (int64_t i = whole; i < width; ++i) {  // lanes behind the last element would have a distance too
        sum += (x[i] - mean) * (x[i] - mean);
    }
    auto factor = constant<Isa>(1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + epsilon));
    for_vectors<Isa>(width, [&](int64_t i, int64_t count) {
        auto scaled = Isa::multiply(Isa::add(load_some<Isa>(x + i, count), minus_mean), factor);
        store_some<Isa>(
            y + i, Isa::fma(scaled, load_some<Isa>(weight + i, count), load_some<Isa>(bias + i, count)), count);
    });
}

/// x * Phi(x) = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2, with the rational approximation of erfc that is within
/// 1.5e-7 everywhere. Source: Abramowitz and Stegun 1964, 7.1.26.
template <class Isa>
void gelu(const float* x, int64_t count, float* y) {
    auto one = constant<Isa>(1.0f);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto values = load_some<Isa>(x + i, lanes);
        auto size = Isa::larger(values, Isa::multiply(values, constant<Isa>(-1.0f)));
        auto root = Isa::multiply(size, constant<Isa>(0.70710678f));
        auto t = Isa::divide(one, Isa::fma(root, constant<Isa>(0.3275911f), one));
        auto sum = constant<Isa>(1.061405429f);
        sum = Isa::fma(sum, t, constant<Isa>(-1.453152027f));
        sum = Isa::fma(sum, t, constant<Isa>(1.421413741f));
        sum = Isa::fma(sum, t, constant<Isa>(-0.284496736f));
        sum = Isa::fma(sum, t, constant<Isa>(0.254829592f));
        auto falling = exponential<Isa>(Isa::multiply(Isa::multiply(root, root), constant<Isa>(-1.0f)));
        auto tail = Isa::multiply(Isa::multiply(sum, t), falling);  // erfc
        auto positive = Isa::larger(values, constant<Isa>(0.0f));
        store_some<Isa>(y + i, Isa::fma(Isa::multiply(size, tail), constant<Isa>(-0.5f), positive), lanes);
    });
}

template <class Isa>
void swiglu(const float* gate, const float* up, int64_t count, float* y) {
    auto one = constant<Isa>(1.0f);
    auto minus_one = constant<Isa>(-1.0f);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto values = load_some<Isa>(gate + i, lanes);
        auto below = Isa::add(one, exponential<Isa>(Isa::multiply(values, minus_one)));
        auto gated = Isa::divide(values, below);
        store_some<Isa>(y + i, Isa::multiply(gated, load_some<Isa>(up + i, lanes)), lanes);
    });
}

template <class Isa>
void geglu(const float* gate, const float* up, int64_t count, float* y) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), and 2 u = g * (2 c + 2 c * 0.044715 * g^2), c = sqrt(2 / pi).
    auto one = constant<Isa>(1.0f);
    auto linear = constant<Isa>(-1.5957691216057308f);
    auto cubic = constant<Isa>(-0.07135481627260026f);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto values = load_some<Isa>(gate + i, lanes);
        auto power = Isa::multiply(values, Isa::fma(Isa::multiply(values, values), cubic, linear));
        auto gated = Isa::divide(values, Isa::add(one, exponential<Isa>(power)));
        store_some<Isa>(y + i, Isa::multiply(gated, load_some<Isa>(up + i, lanes)), lanes);
    });
}

template <class Isa>
void sigmoid_gate(const float* x, const float* gate, int64_t count, float* y) {
    auto one = constant<Isa>(1.0f);
    auto minus_one = constant<Isa>(-1.0f);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto falling = exponential<Isa>(Isa::multiply(load_some<Isa>(gate + i, lanes), minus_one));
        store_some<Isa>(y + i, Isa::divide(load_some<Isa>(x + i, lanes), Isa::add(one, falling)), lanes);
    });
}

template <class Isa>
void soft_bound(const float* x, float bound, int64_t count, float* y) {
    // tanh(z) = 1 - 2 / (1 + exp(2 z))
    auto one = constant<Isa>(1.0f);
    auto twice = constant<Isa>(2.0f / bound);
    auto height = constant<Isa>(bound);
    auto drop = constant<Isa>(-2.0f * bound);
    for_vectors<Isa>(count, [&](int64_t i, int64_t lanes) {
        auto power = exponential<Isa>(Isa::multiply(load_some<Isa>(x + i, lanes), twice));
        store_some<Isa>(y + i, Isa::add(height, Isa::divide(drop, Isa::add(one, power))), lanes);
    });
}

/// Turns vectors of pairs by their angles.
template <class Isa>
inline void turn(typename Isa::Vec& front, typename Isa::Vec& back, typename Isa::Vec cosine, typename Isa::Vec sine) {
    auto crossed = Isa::multiply(Isa::multiply(back, sine), constant<Isa>(-1.0f));
    back = Isa::fma(back, cosine, Isa::multiply(front, sine));
    front = Isa::fma(front, cosine, crossed);
}

template <class Isa>
void rotate(const float* x, const float* cosines, const float* sines, int64_t half, float* y) {
    for_vectors<Isa>(half, [&](int64_t i, int64_t count) {
        auto front = load_some<Isa>(x + i, count);
        auto back = load_some<Isa>(x + half + i, count);
        turn<Isa>(front, back, load_some<Isa>(cosines + i, count), load_some<Isa>(sines + i, count));
        store_some<Isa>(y + i, front, count);
        store_some<Isa>(y + half + i, back, count);
    });
}

template <class Isa>
void rotate_neighbours(const float* x, const float* cosines, const float* sines, int64_t half, float* y) {
    for_vectors<Isa>(half, [&](int64_t i, int64_t count) {
        float fronts[Isa::kLanes] = {};
        float backs[Isa::kLanes] = {};
        for (int64_t lane = 0; lane < count; ++lane) {
            fronts[lane] = x[2 * (i + lane)];
            backs[lane] = x[2 * (i + lane) + 1];
        }
        auto front = Isa::load(fronts);
        auto back = Isa::load(backs);
        turn<Isa>(front, back, load_some<Isa>(cosines + i, count), load_some<Isa>(sines + i, count));
        Isa::store(fronts, front);
        Isa::store(backs, back);
        for (int64_t lane = 0; lane < count; ++lane) {
            y[2 * (i + lane)] = fronts[lane];
            y[2 * (i + lane) + 1] = backs[lane];
        }
    });
}

}  // namespace pomona::vector
