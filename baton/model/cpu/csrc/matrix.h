// Matrix products of packed tiles. The right side is packed in panels of kWidth columns, each
// [words, kWidth]; a word is a float, or two bfloat16 that are neighbours along the summed
// dimension.
#pragma once

#include <type_traits>

#include "tiles.h"
#include "vectors.h"

namespace baton {
namespace {

// The rows of the left side are a multiple of this.
constexpr int kRowUnit = 32;

inline Floats add_product(Floats sum, float left, Floats right) { return sum + left * right; }

#if defined(__AVX512BF16__)
inline Floats add_product(Floats sum, uint32_t left, Words right) {
    const __m512bh of_left = (__m512bh)_mm512_set1_epi32(left);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, of_left, (__m512bh)right);
}
#endif

struct Left {
    const void* words;  // [num_rows, stride]
    int stride;
    int num_rows;  // a multiple of kRowUnit
};

struct Right {
    const void* words;  // [num_panels, panel_stride]
    int panel_stride;
    int num_words;   // along the summed dimension
    int num_panels;  // even
};

// sums[num_rows, num_panels * kWidth] = left x right, or += where kAdds.
template <class Word, bool kAdds>
inline void multiply(Left left, Right right, float* sums, int sums_stride) {
    constexpr int kRows = kWidth == 16 ? 8 : 4;
    using RightWords = std::conditional_t<std::is_same_v<Word, float>, Floats, Words>;
    for (int panel = 0; panel < right.num_panels; panel += 2) {
        const Word* low = static_cast<const Word*>(right.words) + panel * right.panel_stride;
        const Word* high = low + right.panel_stride;
        for (int row = 0; row < left.num_rows; row += kRows) {
            const Word* of_row = static_cast<const Word*>(left.words) + row * left.stride;
            float* to = sums + row * sums_stride + panel * kWidth;
            Floats in[kRows][2] = {};
            if (kAdds)
                for (int r = 0; r < kRows; ++r) {
                    in[r][0] = load<Floats>(to + r * sums_stride);
                    in[r][1] = load<Floats>(to + r * sums_stride + kWidth);
                }
            for (int i = 0; i < right.num_words; ++i) {
                const RightWords a = load<RightWords>(low + i * kWidth);
                const RightWords b = load<RightWords>(high + i * kWidth);
                for (int r = 0; r < kRows; ++r) {
                    in[r][0] = add_product(in[r][0], of_row[r * left.stride + i], a);
                    in[r][1] = add_product(in[r][1], of_row[r * left.stride + i], b);
                }
            }
            for (int r = 0; r < kRows; ++r) {
                store(to + r * sums_stride, in[r][0]);
                store(to + r * sums_stride + kWidth, in[r][1]);
            }
        }
    }
}

#if defined(__AMX_BF16__)
// 32 rows and two panels: tiles 0 to 3 hold sums, 4 and 5 left, 6 and 7 right sides.
template <bool kAdds>
inline void multiply_by_tiles(const char* left, int64_t left_bytes, const char* low,
                              const char* high, int num_words, float* sums, int64_t sums_bytes) {
    const char* lower = left + 16 * left_bytes;
    char* to = reinterpret_cast<char*>(sums);
    char* to_lower = to + 16 * sums_bytes;
    if (kAdds) {
        load_tile<0>(to, sums_bytes);
        load_tile<1>(to + 64, sums_bytes);
        load_tile<2>(to_lower, sums_bytes);
        load_tile<3>(to_lower + 64, sums_bytes);
    } else {
        clear_tile<0>();
        clear_tile<1>();
        clear_tile<2>();
        clear_tile<3>();
    }
    for (int64_t word = 0; word < num_words; word += 16) {
        load_tile<4>(left + word * 4, left_bytes);
        load_tile<6>(low + word * 64, 64);
        multiply_tiles<0, 4, 6>();
        load_tile<7>(high + word * 64, 64);
        multiply_tiles<1, 4, 7>();
        load_tile<5>(lower + word * 4, left_bytes);
        multiply_tiles<2, 5, 6>();
        multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(to, sums_bytes);
    store_tile<1>(to + 64, sums_bytes);
    store_tile<2>(to_lower, sums_bytes);
    store_tile<3>(to_lower + 64, sums_bytes);
}

template <bool kAdds>
inline void multiply_by_tiles(Left left, Right right, float* sums, int sums_stride) {
    static_assert(kRowUnit == 32);
    for (int panel = 0; panel < right.num_panels; panel += 2) {
        const char* low =
            static_cast<const char*>(right.words) + int64_t(panel) * right.panel_stride * 4;
        for (int row = 0; row < left.num_rows; row += kRowUnit)
            multiply_by_tiles<kAdds>(
                static_cast<const char*>(left.words) + int64_t(row) * left.stride * 4,
                left.stride * 4, low, low + right.panel_stride * 4, right.num_words,
                sums + int64_t(row) * sums_stride + panel * 16, sums_stride * 4);
    }
}

template <>
inline void multiply<uint32_t, false>(Left left, Right right, float* sums, int sums_stride) {
    multiply_by_tiles<false>(left, right, sums, sums_stride);
}

template <>
inline void multiply<uint32_t, true>(Left left, Right right, float* sums, int sums_stride) {
    multiply_by_tiles<true>(left, right, sums, sums_stride);
}
#endif

// Words [kWidth, num_words], rows `stride` apart, to a panel [num_words, kWidth].
template <class Word>
inline void transpose(const Word* from, int64_t stride, int num_words, Word* to) {
#if defined(__AVX512F__)
    for (int word = 0; word < num_words; word += 16) {
        __m512 v[16], w[16];
        for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_ps(from + i * stride + word);
        for (int i = 0; i < 8; ++i) {
            w[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
            w[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            for (int half = 0; half < 2; ++half) {
                const __m512d a = _mm512_castps_pd(w[i + half]),
                              b = _mm512_castps_pd(w[i + half + 2]);
                v[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                v[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        // v[4q + c] holds in lane l the words 4l + c of the rows 4q to 4q + 3.
        for (int c = 0; c < 4; ++c) {
            const __m512 a = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x88);
            const __m512 b = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xdd);
            const __m512 d = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x88);
            const __m512 e = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xdd);
            Word* column = to + (word + c) * 16;
            _mm512_storeu_ps(column, _mm512_shuffle_f32x4(a, d, 0x88));
            _mm512_storeu_ps(column + 4 * 16, _mm512_shuffle_f32x4(b, e, 0x88));
            _mm512_storeu_ps(column + 8 * 16, _mm512_shuffle_f32x4(a, d, 0xdd));
            _mm512_storeu_ps(column + 12 * 16, _mm512_shuffle_f32x4(b, e, 0xdd));
        }
    }
#else
    for (int word = 0; word < num_words; ++word)
        for (int i = 0; i < kWidth; ++i) to[word * kWidth + i] = from[i * stride + word];
#endif
}

}  // namespace
}  // namespace baton
