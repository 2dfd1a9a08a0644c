#include "../kernels.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include <arm_neon.h>

#include "tile.h"

namespace pomona {

namespace {

/// What every 64-bit Arm processor has.
struct Neon {
    using Vec = float32x4_t;
    static constexpr int kLanes = 4;
    static constexpr int kRowTile = 5;
    static constexpr int kOutputTile = 4;  // 20 sums, 5 values of x and a weight: 26 of 32 registers
    static constexpr int kFusedTiles = 2;

    static Vec zero() { return vdupq_n_f32(0); }
    static Vec load(const float* from) { return vld1q_f32(from); }
    static void store(float* to, Vec values) { vst1q_f32(to, values); }
    static Vec broadcast(const float* from) { return vld1q_dup_f32(from); }
    static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static Vec multiply(Vec a, Vec b) { return vmulq_f32(a, b); }
    static Vec divide(Vec a, Vec b) { return vdivq_f32(a, b); }
    static Vec larger(Vec a, Vec b) { return vmaxq_f32(a, b); }
    static Vec smaller(Vec a, Vec b) { return vminq_f32(a, b); }
    static Vec load_part(const float* from, int64_t count) {
        float values[kLanes] = {};
        std::memcpy(values, from, count * sizeof(float));
        return vld1q_f32(values);
    }
    static void store_part(float* to, Vec values, int64_t count) {
        float stored[kLanes];
        vst1q_f32(stored, values);
        std::memcpy(to, stored, count * sizeof(float));
    }
    static Vec scaled(Vec a, Vec n) {
        uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(n), 23);
        return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), power));
    }
    static float total(Vec values) {
        Vec pairs = vpaddq_f32(values, values);
        return vgetq_lane_f32(vpaddq_f32(pairs, pairs), 0);
    }
    static Vec totals(const Vec (&vectors)[kLanes]) {
        return vpaddq_f32(vpaddq_f32(vectors[0], vectors[1]), vpaddq_f32(vectors[2], vectors[3]));
    }
    static float largest(Vec values) { return vmaxvq_f32(values); }

    template <bool is_float16>
    static Vec load_half(const uint16_t* from) {
        uint16x4_t halves = vld1_u16(from);
        return is_float16 ? vcvt_f32_f16(vreinterpret_f16_u16(halves)) : vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
    }

    static void widen(const uint16_t* halves, int64_t count, bool is_float16, float* wide) {
        for (int64_t i = 0; i < count; ++i) {
            uint16x4_t bits = vdup_n_u16(halves[i]);
            float32x4_t value =
                is_float16 ? vcvt_f32_f16(vreinterpret_f16_u16(bits)) : vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
            vst1q_lane_f32(wide + i, value, 0);
        }
    }

    /// Adds neighbouring lanes, then neighbouring pairs.
    template <int rows>
    static void sums(const Vec (&partial)[rows][kOutputTile], float (&sums)[rows][tile::kSumsStride]) {
        POMONA_UNROLL
        for (int m = 0; m < rows; ++m) {
            Vec front = vpaddq_f32(partial[m][0], partial[m][1]);
            Vec back = vpaddq_f32(partial[m][2], partial[m][3]);
            vst1q_f32(sums[m], vpaddq_f32(front, back));
        }
    }

    template <int bits>
    struct Unpack;
};

/// Codes that straddle bytes: each lane gets the two bytes that hold its code, moves it down and masks it.
template <int bits>
struct Neon::Unpack {
    using Table = tile::Straddling<bits>;
    uint8x16_t bytes[8];
    int32x4_t shifts[8];
    uint32x4_t mask = vdupq_n_u32((1 << bits) - 1);

    Unpack() {
        POMONA_UNROLL
        for (int i = 0; i < 8; ++i) {
            bytes[i] = vld1q_u8(tile::kStraddling<bits>.bytes + 16 * i);
            shifts[i] = vnegq_s32(vld1q_s32(tile::kStraddling<bits>.shifts + 4 * i));
        }
    }

    static uint8x16_t window(const uint8_t* from) {
        if constexpr (Table::kWindowBytes == 8) {
            uint8x8_t half = vld1_u8(from);
            return vcombine_u8(half, half);
        } else {
            return vld1q_u8(from);
        }
    }

    void operator()(const uint8_t* unit, Vec (&codes)[8]) const {
        uint8x16_t windows[2] = {window(unit), window(unit + Table::kSecondWindow)};
        POMONA_UNROLL
        for (int i = 0; i < 8; ++i) {
            uint32x4_t both = vreinterpretq_u32_u8(vqtbl1q_u8(windows[i / 4], bytes[i]));
            codes[i] = vcvtq_f32_u32(vandq_u32(vshlq_u32(both, shifts[i]), mask));
        }
    }
};

template <>
struct Neon::Unpack<4> {
    uint32x4_t mask = vdupq_n_u32(15);

    void operator()(const uint8_t* unit, Vec (&codes)[8]) const {
        uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8(unit));
        POMONA_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[i] = vcvtq_f32_u32(vandq_u32(vshlq_u32(words, vdupq_n_s32(-4 * i)), mask));
        }
    }
};

constexpr Instructions kInstructions = tile::instructions_of<Neon>("neon");

}  // namespace

const Instructions* neon_instructions() {
    return &kInstructions;
}

}  // namespace pomona

#else

namespace pomona {

const Instructions* neon_instructions() {
    return nullptr;
}

}  // namespace pomona

#endif
