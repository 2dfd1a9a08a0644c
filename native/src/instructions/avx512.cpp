#include "../kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "tile.h"

namespace pomona {

namespace {

/// AVX-512 F, BW, DQ and VL: what every processor with AVX-512 but the first Xeon Phi has.
struct Avx512 {
    using Vec = __m512;
    static constexpr int kLanes = 16;
    static constexpr int kRowTile = 4;
    static constexpr int kOutputTile = 6;  // 24 sums, 6 weights and a value of x: 31 of 32 registers
    static constexpr int kFusedTiles = 8;

    static Vec zero() { return _mm512_setzero_ps(); }
    static Vec load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, Vec values) { _mm512_storeu_ps(to, values); }
    static Vec broadcast(const float* from) { return _mm512_set1_ps(*from); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
    static Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
    static Vec smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
    static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
    static Vec load_part(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
    static void store_part(float* to, Vec values, int64_t count) { _mm512_mask_storeu_ps(to, first(count), values); }
    static Vec scaled(Vec a, Vec n) {
        __m512i power = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power));
    }

    static Vec wide(__m256i halves, bool is_float16) {
        return is_float16 ? _mm512_cvtph_ps(halves)
                          : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }

    template <bool is_float16>
    static Vec load_half(const uint16_t* from) {
        return wide(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), is_float16);
    }

    static void widen(const uint16_t* halves, int64_t count, bool is_float16, float* values) {
        if (count < kLanes) {
            __mmask16 mask = (1u << count) - 1;
            _mm512_mask_storeu_ps(values, mask, wide(_mm256_maskz_loadu_epi16(mask, halves), is_float16));
            return;
        }
        for (int64_t i = 0; i < count; i += kLanes) {
            int64_t begin = vector::smaller(i, count - kLanes);  // the last vector overlaps the one before
            __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + begin));
            _mm512_storeu_ps(values + begin, wide(bits, is_float16));
        }
    }

    // The tree: lane l takes lane l + 8, then l + 4, l + 2, l + 1. Two vectors share each step where there are two.

    /// [a, b], each of 8 lanes.
    static Vec by_8(Vec a, Vec b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    }
    /// [a, b, c, d] of [a, b] and [c, d], each of 4 lanes.
    static Vec by_4(Vec ab, Vec cd) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    }
    /// Within each quarter, two lanes of the left's and then two of the right's.
    static Vec by_2(Vec left, Vec right) {
        return _mm512_add_ps(_mm512_shuffle_ps(left, right, 0x44), _mm512_shuffle_ps(left, right, 0xEE));
    }
    /// Within each quarter, the two sums of the left and then the two of the right.
    static Vec by_1(Vec left, Vec right) {
        return _mm512_add_ps(_mm512_shuffle_ps(left, right, 0x88), _mm512_shuffle_ps(left, right, 0xDD));
    }

    /// Sums of the six outputs of one row.
    static void row_sums(const Vec (&partial)[kOutputTile], float* sums) {
        Vec front = by_4(by_8(partial[0], partial[1]), by_8(partial[2], partial[3]));
        Vec back = by_8(partial[4], partial[5]);
        back = by_4(back, back);        // quarters: 4, 5, 4, 5
        Vec pairs = by_2(front, back);  // lanes 0, 1: front; 2, 3: back
        Vec all = by_1(pairs, pairs);   // lane 0: front; 1: back
        const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_storeu_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(places, all)));
    }

    /// Sums of the six outputs of four rows: a quarter for each row.
    static void four_rows_sums(const Vec (&partial)[4][kOutputTile], float (&sums)[4][tile::kSumsStride]) {
        Vec column[kOutputTile];
        POMONA_UNROLL
        for (int n = 0; n < kOutputTile; ++n) {
            column[n] = by_4(by_8(partial[0][n], partial[1][n]), by_8(partial[2][n], partial[3][n]));
        }
        Vec front = by_1(by_2(column[0], column[1]), by_2(column[2], column[3]));
        Vec back = by_2(column[4], column[5]);
        back = by_1(back, back);
        _mm_storeu_ps(sums[0], _mm512_castps512_ps128(front));
        _mm_storeu_ps(sums[1], _mm512_extractf32x4_ps(front, 1));
        _mm_storeu_ps(sums[2], _mm512_extractf32x4_ps(front, 2));
        _mm_storeu_ps(sums[3], _mm512_extractf32x4_ps(front, 3));
        _mm_storeu_ps(sums[0] + 4, _mm512_castps512_ps128(back));
        _mm_storeu_ps(sums[1] + 4, _mm512_extractf32x4_ps(back, 1));
        _mm_storeu_ps(sums[2] + 4, _mm512_extractf32x4_ps(back, 2));
        _mm_storeu_ps(sums[3] + 4, _mm512_extractf32x4_ps(back, 3));
    }

    static float total(Vec values) {
        Vec sum = by_4(by_8(values, values), by_8(values, values));
        sum = by_2(sum, sum);
        return _mm512_cvtss_f32(by_1(sum, sum));
    }
    static Vec totals(const Vec (&vectors)[kLanes]) {
        Vec column[4];
        POMONA_UNROLL
        for (int i = 0; i < 4; ++i) {
            column[i] = by_4(by_8(vectors[i], vectors[4 + i]), by_8(vectors[8 + i], vectors[12 + i]));
        }
        return by_1(by_2(column[0], column[1]), by_2(column[2], column[3]));
    }
    static float largest(Vec values) { return _mm512_reduce_max_ps(values); }

    template <int rows>
    static void sums(const Vec (&partial)[rows][kOutputTile], float (&sums)[rows][tile::kSumsStride]) {
        if constexpr (rows == 4) {
            four_rows_sums(partial, sums);
        } else {
            POMONA_UNROLL
            for (int m = 0; m < rows; ++m) {
                row_sums(partial[m], sums[m]);
            }
        }
    }

    template <int bits>
    struct Unpack;
};

/// The numbers 0 to 2^bits - 1, again and again: a lookup by the low bits needs no mask and no conversion.
template <int bits>
struct Numbers {
    float values[32];

    constexpr Numbers() : values() {
        for (int i = 0; i < 32; ++i) {
            values[i] = static_cast<float>(i % (1 << bits));
        }
    }
};

template <int bits>
constexpr Numbers<bits> kNumbers{};

template <>
struct Avx512::Unpack<2> {
    __m512 table = _mm512_loadu_ps(kNumbers<2>.values);
    __m512i shifts = _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);

    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        long long both;
        std::memcpy(&both, unit, sizeof(both));
        __m512i words = _mm512_set1_epi64(both);
        codes[0] = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), table);
        codes[1] = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_srli_epi32(words, 16), shifts), table);
    }
};

template <>
struct Avx512::Unpack<4> {
    __m512 table = _mm512_loadu_ps(kNumbers<4>.values);
    __m512i low = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m512i high = _mm512_setr_epi32(16, 16, 16, 16, 20, 20, 20, 20, 24, 24, 24, 24, 28, 28, 28, 28);

    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit)));
        codes[0] = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, low), table);
        codes[1] = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, high), table);
    }
};

template <>
struct Avx512::Unpack<8> {
    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        const auto* halves = reinterpret_cast<const __m128i*>(unit);
        codes[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(halves)));
        codes[1] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(halves + 1)));
    }
};

/// Gives each lane the two bytes that hold its code, and moves it down. What lies above it is left there.
template <int bits>
struct Windows {
    using Table = tile::Straddling<bits>;
    __m512i first = _mm512_loadu_si512(tile::kStraddling<bits>.bytes);
    __m512i second = _mm512_loadu_si512(tile::kStraddling<bits>.bytes + 64);
    __m512i shifts = _mm512_loadu_si512(tile::kStraddling<bits>.shifts);  // the same in both halves

    static __m512i window(const uint8_t* from) {
        if constexpr (Table::kWindowBytes == 8) {
            long long bytes;
            std::memcpy(&bytes, from, sizeof(bytes));
            return _mm512_set1_epi64(bytes);
        } else {
            return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        }
    }

    void operator()(const uint8_t* unit, __m512i (&codes)[2]) const {
        codes[0] = _mm512_srlv_epi32(_mm512_shuffle_epi8(window(unit), first), shifts);
        codes[1] = _mm512_srlv_epi32(_mm512_shuffle_epi8(window(unit + Table::kSecondWindow), second), shifts);
    }
};

template <>
struct Avx512::Unpack<3> {
    __m512 table = _mm512_loadu_ps(kNumbers<3>.values);
    Windows<3> windows;

    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        __m512i moved[2];
        windows(unit, moved);
        codes[0] = _mm512_permutexvar_ps(moved[0], table);
        codes[1] = _mm512_permutexvar_ps(moved[1], table);
    }
};

template <>
struct Avx512::Unpack<5> {
    __m512 low = _mm512_loadu_ps(kNumbers<5>.values);
    __m512 high = _mm512_loadu_ps(kNumbers<5>.values + 16);
    Windows<5> windows;

    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        __m512i moved[2];
        windows(unit, moved);
        codes[0] = _mm512_permutex2var_ps(low, moved[0], high);
        codes[1] = _mm512_permutex2var_ps(low, moved[1], high);
    }
};

template <>
struct Avx512::Unpack<6> {
    __m512i mask = _mm512_set1_epi32(63);
    Windows<6> windows;

    void operator()(const uint8_t* unit, Vec (&codes)[2]) const {
        __m512i moved[2];
        windows(unit, moved);
        codes[0] = _mm512_cvtepi32_ps(_mm512_and_si512(moved[0], mask));
        codes[1] = _mm512_cvtepi32_ps(_mm512_and_si512(moved[1], mask));
    }
};

constexpr Instructions kInstructions = tile::instructions_of<Avx512>("avx512");

}  // namespace

const Instructions* avx512_instructions() {
    return &kInstructions;
}

}  // namespace pomona

#else

namespace pomona {

const Instructions* avx512_instructions() {
    return nullptr;
}

}  // namespace pomona

#endif
