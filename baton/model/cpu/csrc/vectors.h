// Vectors of the widest floats that this unit is compiled for, and what attention does with them.
// Included by units of one instruction set only, hence the anonymous namespace (isa.h).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kPair = 2 * kWidth;

#if defined(__AVX512BF16__)
constexpr bool kHasBf16Dots = true;
#else
constexpr bool kHasBf16Dots = false;
#endif

typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef int32_t Ints __attribute__((vector_size(kWidth * 4)));
typedef uint32_t Words __attribute__((vector_size(kWidth * 4)));

struct Bf16 {
    uint16_t bits;
};

template <class V>
inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
inline void store(void* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

inline Floats splat(float x) { return x - Floats{}; }
inline Ints splat(int32_t x) { return x + Ints{}; }

inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

inline float sum_of(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
    __m128 sum = _mm256_castps256_ps128((__m256)v) + _mm256_extractf128_ps((__m256)v, 1);
    sum = sum + _mm_movehl_ps(sum, sum);
    return _mm_cvtss_f32(sum + _mm_movehdup_ps(sum));
#else
    float sum = v[0];
    for (int i = 1; i < kWidth; ++i) sum += v[i];
    return sum;
#endif
}

inline float maximum_of(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lanes[kWidth];
    store(lanes, v);
    for (int i = 1; i < kWidth; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
    return lanes[0];
#endif
}

// 0, 1, 2, ...
inline Ints lane_numbers() {
    Ints lanes;
    for (int i = 0; i < kWidth; ++i) lanes[i] = i;
    return lanes;
}

// Two to the power of x, to 1e-7; exactly 1 at 0 and exactly 0 below -126.
inline Floats exp2(Floats x) {
    constexpr float c1 = 0.693147004f, c2 = 0.240222424f, c3 = 0.0555073358f, c4 = 0.00967151299f,
                    c5 = 0.00132647273f;
#if defined(__AVX512F__)
    const __m512 whole = _mm512_roundscale_ps((__m512)x, 8);
    const Floats rest = x - (Floats)whole;
    Floats power = c5 * rest + c4;
    power = power * rest + c3;
    power = power * rest + c2;
    power = power * rest + c1;
    power = power * rest + 1.0f;
    const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    return (Floats)_mm512_maskz_scalef_ps(is_normal, (__m512)power, whole);
#else
    const Ints is_normal = x >= splat(-126.0f);
    const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats kept = (Floats)((Ints)x & is_normal);
    const Floats shifted = kept + magic;
    const Floats rest = kept - (shifted - magic);
    Floats power = c5 * rest + c4;
    power = power * rest + c3;
    power = power * rest + c2;
    power = power * rest + c1;
    power = power * rest + 1.0f;
    const Ints exponent = (Ints)shifted - (Ints)magic;
    return (Floats)(((Ints)power + (exponent << 23)) & is_normal);
#endif
}

inline float exp2(float x) { return exp2(splat(x))[0]; }

// tanh(x), to 1e-6 absolute: 1 - 2 / (1 + e^2x), with x limited to where that is not 1 or -1.
inline Floats tanh(Floats x) {
    const Floats limit = splat(16.0f);
    const Floats kept = -maximum(-maximum(x, -limit), -limit);
    return 1.0f - 2.0f / (1.0f + exp2(kept * 2.885390082f));
}

// Elements are worked on in pairs of vectors. Which element is in which lane is up to load_pair;
// store_pair undoes it.
struct Pair {
    Floats low, high;
};

inline Pair load_pair(const float* from) {
    return {load<Floats>(from), load<Floats>(from + kWidth)};
}

inline Pair load_pair(const Bf16* from) {
    const Words both = load<Words>(from);
    return {(Floats)(both << 16), (Floats)(both & 0xffff0000u)};
}

// The first `count` elements and then zeros; reads nothing behind them.
template <class T>
inline Pair load_pair(const T* from, int count) {
    if (count >= kPair) return load_pair(from);
    T padded[kPair] = {};
    std::memcpy(padded, from, count * sizeof(T));
    return load_pair(padded);
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline Words round_to_bf16(Floats x) {
    const Words bits = (Words)x;
    const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (x == x ? rounded : bits | 0x400000u) & 0xffff0000u;
}

inline void store_pair(float* to, Pair pair) {
    store(to, pair.low);
    store(to + kWidth, pair.high);
}

inline void store_pair(Bf16* to, Pair pair) {
    store(to, (round_to_bf16(pair.low) >> 16) | round_to_bf16(pair.high));
}

template <class T>
inline void store_pair(T* to, Pair pair, int count) {
    if (count >= kPair) return store_pair(to, pair);
    T padded[kPair];
    store_pair(padded, pair);
    std::memcpy(to, padded, count * sizeof(T));
}

inline int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

}  // namespace
}  // namespace baton
