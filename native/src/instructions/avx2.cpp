#include "../kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "tile.h"

namespace pomona {

namespace {

/// AVX2, FMA and F16C, which came together.
struct Avx2 {
    using Vec = __m256;
    static constexpr int kLanes = 8;
    static constexpr int kRowTile = 3;
    static constexpr int kOutputTile = 4;  // 12 sums, 3 values of x and a weight: all 16 registers
    static constexpr int kFusedTiles = 2;

    static Vec zero() { return _mm256_setzero_ps(); }
    static Vec load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, Vec values) { _mm256_storeu_ps(to, values); }
    static Vec broadcast(const float* from) { return _mm256_broadcast_ss(from); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec multiply(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
    static Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
    static Vec smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
    static __m256i first(int64_t count) {
        __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
    }
    static Vec load_part(const float* from, int64_t count) { return _mm256_maskload_ps(from, first(count)); }
    static void store_part(float* to, Vec values, int64_t count) { _mm256_maskstore_ps(to, first(count), values); }
    static Vec scaled(Vec a, Vec n) {
        __m256i power = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
    }

    template <bool is_float16>
    static Vec load_half(const uint16_t* from) {
        __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return is_float16 ? _mm256_cvtph_ps(halves)
                          : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }

    static void widen(const uint16_t* halves, int64_t count, bool is_float16, float* wide) {
        for (int64_t i = 0; i < count; ++i) {
            __m128i bits = _mm_cvtsi32_si128(halves[i]);
            __m128 value = is_float16 ? _mm_cvtph_ps(bits) : _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
            _mm_store_ss(wide + i, value);
        }
    }

    // The tree: lane l takes lane l + 4, then l + 2, l + 1. Two vectors share each step where there are two.

    /// [a, b], each of 4 lanes.
    static Vec by_4(Vec a, Vec b) {
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    /// Within each half, two lanes of the left's and then two of the right's.
    static Vec by_2(Vec left, Vec right) {
        return _mm256_add_ps(_mm256_shuffle_ps(left, right, 0x44), _mm256_shuffle_ps(left, right, 0xEE));
    }
    /// Within each half, the two sums of the left and then the two of the right.
    static Vec by_1(Vec left, Vec right) {
        return _mm256_add_ps(_mm256_shuffle_ps(left, right, 0x88), _mm256_shuffle_ps(left, right, 0xDD));
    }

    static void four_sums(const Vec (&partial)[kOutputTile], float* sums) {
        Vec twos = by_2(by_4(partial[0], partial[1]), by_4(partial[2], partial[3]));
        Vec ones = by_1(twos, twos);  // 0, 2 in the lower half; 1, 3 in the upper
        _mm_storeu_ps(sums, _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1)));
    }
    static float total(Vec values) {
        Vec sum = by_4(values, values);
        sum = by_2(sum, sum);
        return _mm256_cvtss_f32(by_1(sum, sum));
    }
    static Vec totals(const Vec (&vectors)[kLanes]) {
        Vec left = by_2(by_4(vectors[0], vectors[4]), by_4(vectors[1], vectors[5]));
        Vec right = by_2(by_4(vectors[2], vectors[6]), by_4(vectors[3], vectors[7]));
        return by_1(left, right);
    }
    static float largest(Vec values) {
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
        __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
    }

    template <int rows>
    static void sums(const Vec (&partial)[rows][kOutputTile], float (&sums)[rows][tile::kSumsStride]) {
        POMONA_UNROLL
        for (int m = 0; m < rows; ++m) {
            four_sums(partial[m], sums[m]);
        }
    }

    template <int bits>
    struct Unpack;
};

/// Codes that straddle bytes: each lane gets the two bytes that hold its code, moves it down and masks it.
template <int bits>
struct Avx2::Unpack {
    using Table = tile::Straddling<bits>;
    __m256i bytes[4];
    __m256i shifts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile::kStraddling<bits>.shifts));
    __m256i mask = _mm256_set1_epi32((1 << bits) - 1);

    Unpack() {
        POMONA_UNROLL
        for (int i = 0; i < 4; ++i) {
            bytes[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile::kStraddling<bits>.bytes + 32 * i));
        }
    }

    static __m256i window(const uint8_t* from) {
        if constexpr (Table::kWindowBytes == 8) {
            long long both;
            std::memcpy(&both, from, sizeof(both));
            return _mm256_set1_epi64x(both);
        } else {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        }
    }

    void operator()(const uint8_t* unit, Vec (&codes)[4]) const {
        __m256i windows[2] = {window(unit), window(unit + Table::kSecondWindow)};
        POMONA_UNROLL
        for (int i = 0; i < 4; ++i) {
            __m256i moved = _mm256_srlv_epi32(_mm256_shuffle_epi8(windows[i / 2], bytes[i]), shifts);
            codes[i] = _mm256_cvtepi32_ps(_mm256_and_si256(moved, mask));
        }
    }
};

template <>
struct Avx2::Unpack<4> {
    __m256i mask = _mm256_set1_epi32(15);

    void operator()(const uint8_t* unit, Vec (&codes)[4]) const {
        __m256i words = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit)));
        words = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
        POMONA_UNROLL
        for (int i = 0; i < 4; ++i) {
            codes[i] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words, 8 * i), mask));
        }
    }
};

template <>
struct Avx2::Unpack<8> {
    void operator()(const uint8_t* unit, Vec (&codes)[4]) const {
        POMONA_UNROLL
        for (int i = 0; i < 4; ++i) {
            __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(unit + 8 * i));
            codes[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
        }
    }
};

constexpr Instructions kInstructions = tile::instructions_of<Avx2>("avx2");

}  // namespace

const Instructions* avx2_instructions() {
    return &kInstructions;
}

}  // namespace pomona

#else

namespace pomona {

const Instructions* avx2_instructions() {
    return nullptr;
}

}  // namespace pomona

#endif
