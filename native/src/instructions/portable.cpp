#include "../kernels.h"
#include "tile.h"

namespace pomona {

namespace {

/// Any little-endian processor: the compiler makes of the vectors what it can.
struct Portable {
    typedef float Vec __attribute__((vector_size(16)));
    static constexpr int kLanes = 4;
    static constexpr int kRowTile = 2;
    static constexpr int kOutputTile = 4;
    static constexpr int kFusedTiles = 2;

    static Vec zero() { return Vec{}; }
    static Vec load(const float* from) {
        Vec values;
        std::memcpy(&values, from, sizeof(values));
        return values;
    }
    static void store(float* to, Vec values) { std::memcpy(to, &values, sizeof(values)); }
    static Vec broadcast(const float* from) { return Vec{*from, *from, *from, *from}; }
    // Rounded twice. Compiled with -ffp-contract=off: fused in one place and not in another, rows would differ.
    static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
    static Vec add(Vec a, Vec b) { return a + b; }
    static Vec multiply(Vec a, Vec b) { return a * b; }
    static Vec divide(Vec a, Vec b) { return a / b; }
    static Vec larger(Vec a, Vec b) { return a > b ? a : b; }
    static Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
    static Vec load_part(const float* from, int64_t count) {
        Vec values{};
        std::memcpy(&values, from, count * sizeof(float));
        return values;
    }
    static void store_part(float* to, Vec values, int64_t count) { std::memcpy(to, &values, count * sizeof(float)); }
    static Vec scaled(Vec a, Vec n) {
        typedef uint32_t Words __attribute__((vector_size(16)));
        return reinterpret_cast<Vec>(reinterpret_cast<Words>(a) + (reinterpret_cast<Words>(n) << 23));
    }
    static float total(Vec lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }
    static Vec totals(const Vec (&vectors)[kLanes]) {
        return Vec{total(vectors[0]), total(vectors[1]), total(vectors[2]), total(vectors[3])};
    }
    static float largest(Vec lanes) {
        float front = lanes[0] > lanes[1] ? lanes[0] : lanes[1];
        float back = lanes[2] > lanes[3] ? lanes[2] : lanes[3];
        return front > back ? front : back;
    }

    static float float_of(uint32_t bits) {
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }

    static float float16_of(uint16_t half) {
        uint32_t sign = (half & 0x8000u) << 16;
        uint32_t rest = half & 0x7FFFu;
        if (rest >= 0x7C00u) {  // infinity, not a number
            return float_of(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
        }
        // 2^112 puts the exponent right, also of numbers too small to be normal
        float magnitude = float_of(rest << 13) * 0x1p112f;
        return sign ? -magnitude : magnitude;
    }

    static void widen(const uint16_t* halves, int64_t count, bool is_float16, float* wide) {
        for (int64_t i = 0; i < count; ++i) {
            wide[i] = is_float16 ? float16_of(halves[i]) : float_of(static_cast<uint32_t>(halves[i]) << 16);
        }
    }

    template <bool is_float16>
    static Vec load_half(const uint16_t* from) {
        uint16_t halves[kLanes];
        std::memcpy(halves, from, sizeof(halves));
        float wide[kLanes];
        widen(halves, kLanes, is_float16, wide);
        return load(wide);
    }

    template <int rows>
    static void sums(const Vec (&partial)[rows][kOutputTile], float (&sums)[rows][tile::kSumsStride]) {
        for (int m = 0; m < rows; ++m) {
            for (int n = 0; n < kOutputTile; ++n) {
                sums[m][n] = total(partial[m][n]);
            }
        }
    }

    template <int bits>
    struct Unpack {
        void operator()(const uint8_t* unit, Vec (&codes)[8]) const {
            for (int eight = 0; eight < 4; ++eight) {
                uint64_t packed = 0;  // eight codes are as many bytes as a code has bits
                std::memcpy(&packed, unit + eight * bits, bits);
                for (int i = 0; i < 8; ++i) {
                    auto code = static_cast<int>(packed >> (bits * i) & ((1u << bits) - 1));
                    codes[2 * eight + i / 4][i % 4] = static_cast<float>(code);
                }
            }
        }
    };
};

constexpr Instructions kInstructions = tile::instructions_of<Portable>("portable");

}  // namespace

const Instructions* portable_instructions() {
    return &kInstructions;
}

}  // namespace pomona
