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

    static Vec zero() { return _mm256_setzero_ps(); }
    static Vec load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, Vec values) { _mm256_storeu_ps(to, values); }
    static Vec broadcast(const float* from) { return _mm256_broadcast_ss(from); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

    static void widen(const uint16_t* halves, int64_t count, bool is_float16, float* wide) {
        for (int64_t i = 0; i < count; ++i) {
            __m128i bits = _mm_cvtsi32_si128(halves[i]);
            __m128 value = is_float16 ? _mm_cvtph_ps(bits) : _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
            _mm_store_ss(wide + i, value);
        }
    }

    /// Adds lane l + 4 to lane l, then l + 2, then l + 1, for four vectors at once.
    static void four_sums(const Vec (&partial)[kOutputTile], float* sums) {
        Vec ab = _mm256_add_ps(_mm256_permute2f128_ps(partial[0], partial[1], 0x20),
                               _mm256_permute2f128_ps(partial[0], partial[1], 0x31));
        Vec cd = _mm256_add_ps(_mm256_permute2f128_ps(partial[2], partial[3], 0x20),
                               _mm256_permute2f128_ps(partial[2], partial[3], 0x31));
        Vec twos = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
        Vec ones = _mm256_add_ps(_mm256_shuffle_ps(twos, twos, 0x88), _mm256_shuffle_ps(twos, twos, 0xDD));
        // a, c in the lower half; b, d in the upper
        _mm_storeu_ps(sums, _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1)));
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
