// Few query rows over one part of the keys, for decoding. Bound by memory: each key and value is
// read once, in the order of the blocks, and what comes next is asked for meanwhile. What a row
// gets does not depend on the other rows.
#pragma once

#include <type_traits>

#include "part_work.h"

namespace baton {
namespace {

#if defined(__AVX512BF16__)
// The 16 sums of the lanes of 16 vectors.
inline __m512 sums_of(__m512 (&v)[16]) {
    for (int i = 0; i < 8; ++i) {
        const __m512 a = v[2 * i], b = v[2 * i + 1];
        v[i] = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512d a = _mm512_castps_pd(v[2 * i]), b = _mm512_castps_pd(v[2 * i + 1]);
        v[i] =
            _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    for (int count = 2; count > 0; count /= 2)
        for (int i = 0; i < count; ++i) {
            const __m512 a = v[2 * i], b = v[2 * i + 1];
            v[i] = _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
        }
    return v[0];
}

// R queries, padded with zeros, times 16 / R keys, of which only `count` are there: the others
// repeat the last. Result: the keys of the first query, then of the next.
template <int R>
inline __m512 dots(const Bf16* queries, int query_stride, const Bf16* keys, int count, int k_dim,
                   const Bf16* ahead) {
    constexpr int kKeys = 16 / R;
    __m512 sums[16] = {};
    const auto add = [&](int dim, __mmask32 mask, int last) {
        __m512bh query[R];
        for (int r = 0; r < R; ++r)
            query[r] = (__m512bh)_mm512_loadu_si512(queries + r * query_stride + dim);
        for (int i = 0; i < kKeys; ++i) {
            const int64_t start = int64_t(std::min(i, last)) * k_dim + dim;
            if (ahead) prefetch(ahead + (dim * kKeys + i * kPair), kPair);
            const __m512bh key = (__m512bh)_mm512_maskz_loadu_epi16(mask, keys + start);
            for (int r = 0; r < R; ++r)
                sums[r * kKeys + i] = _mm512_dpbf16_ps(sums[r * kKeys + i], query[r], key);
        }
    };
    const int full_dim = k_dim / kPair * kPair;
    if (count >= kKeys)
        for (int dim = 0; dim < full_dim; dim += kPair) add(dim, ~0u, kKeys);
    else
        for (int dim = 0; dim < full_dim; dim += kPair) add(dim, ~0u, count - 1);
    if (full_dim < k_dim) add(full_dim, (1u << (k_dim - full_dim)) - 1, std::min(count, kKeys) - 1);
    return sums_of(sums);
}

// Products of R queries and `count` keys, up to 16, to scores [R, kPartKeys].
template <int R>
inline void multiply_dots(const Bf16* queries, int query_stride, const Bf16* keys, int count,
                          int k_dim, float* scores, const Bf16* ahead) {
    constexpr int kKeys = 16 / R;
    for (int key = 0; key < count; key += kKeys) {
        const int64_t start = int64_t(key) * k_dim;
        alignas(64) float products[16];
        _mm512_store_ps(products, dots<R>(queries, query_stride, keys + start, count - key, k_dim,
                                          ahead ? ahead + start : nullptr));
        for (int r = 0; r < R; ++r)
            std::memcpy(scores + r * kPartKeys + key, products + r * kKeys,
                        std::min(kKeys, count - key) * sizeof(float));
    }
}
#endif

template <class T>
struct PartKernel : PartWork<T> {
    // Queries are kept as they are where there is an instruction for them, else as float32.
    static constexpr bool kDots = kHasBf16Dots && std::is_same_v<T, Bf16>;
    using Query = std::conditional_t<kDots, T, float>;
    using Work = PartWork<T>;
    using Work::end;
    using Work::layer;
    using Work::num_rows;
    using Work::origin;
    using Work::scores;
    using Work::stride;

    Query* queries;  // [num_rows, query_stride]
    int query_stride;

    // What attend_part says (attention.h).
    static void attend(const Rows& rows, int num_rows, int part, int end_key, float* states,
                       Arena& arena) {
        PartKernel kernel{{rows, num_rows, part, end_key}};
        kernel.reserve(arena);
        kernel.copy_queries();
        kernel.multiply_keys();
        kernel.weigh(states);
        kernel.add_values(states);
    }

    void reserve(Arena& arena) {
        query_stride = round_up(layer.k_dim, kPair);
        const int64_t score_bytes = int64_t(num_rows) * kPartKeys * 4;
        const int64_t query_bytes = int64_t(num_rows) * query_stride * sizeof(Query);
        char* memory = static_cast<char*>(arena.reserve(score_bytes + query_bytes));
        scores = reinterpret_cast<float*>(memory);
        queries = reinterpret_cast<Query*>(memory + score_bytes);
    }

    void copy_queries() {
        this->for_each_query([&](int row, const T* query) {
            Query* to = queries + row * query_stride;
            if constexpr (kDots) {
                std::fill(std::copy(query, query + layer.k_dim, to), to + query_stride, Query{});
            } else {
                for (int dim = 0; dim < layer.k_dim; dim += kPair)
                    store_pair(to + dim, load_pair(query + dim, layer.k_dim - dim));
            }
        });
    }

    // ---- Products of queries and keys ----------------------------------------------------------

    void multiply_keys() {
        this->for_each_group([&](int key, int, int num_slots) {
            const T* ahead = this->ahead_of_keys(key);
            const T* keys = this->keys(key);
            float* to = scores + key - origin;
            int row = 0;
            for (; row + 2 <= num_rows; row += 2)
                multiply_group<2>(keys, num_slots, row, to, ahead);
            for (; row < num_rows; ++row) multiply_group<1>(keys, num_slots, row, to, ahead);
        });
    }

    template <int R>
    void multiply_group(const T* keys, int count, int row, float* to, const T* ahead) {
        const Query* query = queries + row * query_stride;
        to += row * kPartKeys;
        if (row) ahead = nullptr;
#if defined(__AVX512BF16__)
        if constexpr (kDots)
            return multiply_dots<R>(query, query_stride, keys, count, layer.k_dim, to, ahead);
        else
#endif
        {
            int key = 0;
            for (; key + 4 <= count; key += 4) multiply<R, 4>(keys, key, query, to, ahead);
            for (; key < count; ++key) multiply<R, 1>(keys, key, query, to, ahead);
        }
    }

    // R rows and N keys in registers.
    template <int R, int N>
    void multiply(const T* keys, int key, const float* query, float* to, const T* ahead) {
        Floats sums[R][N] = {};
        for (int dim = 0; dim < layer.k_dim; dim += kPair) {
            for (int n = 0; n < N; ++n) {
                const int64_t start = int64_t(key + n) * layer.k_dim + dim;
                if (ahead) prefetch(ahead + start, kPair);
                const Pair of_key = load_pair(keys + start, layer.k_dim - dim);
                for (int r = 0; r < R; ++r) {
                    sums[r][n] += load<Floats>(query + r * query_stride + dim) * of_key.low;
                    sums[r][n] +=
                        load<Floats>(query + r * query_stride + dim + kWidth) * of_key.high;
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) to[r * kPartKeys + key + n] = sum_of(sums[r][n]);
    }

    // ---- Weighted sums of values ---------------------------------------------------------------

    void add_values(float* states) {
        this->for_each_group([&](int key, int num_keys, int) {
            const T* ahead = this->ahead_of_values(key);
            const T* values = this->values(key);
            const float* weights = scores + key - origin;
            int row = 0;
            for (; row + 4 <= num_rows; row += 4)
                add_group<4>(values, num_keys, row, weights, states, ahead);
            for (; row + 2 <= num_rows; row += 2)
                add_group<2>(values, num_keys, row, weights, states, ahead);
            for (; row < num_rows; ++row)
                add_group<1>(values, num_keys, row, weights, states, ahead);
        });
    }

    template <int R>
    void add_group(const T* values, int count, int row, const float* weights, float* states,
                   const T* ahead) {
        constexpr int kPairs = (kWidth == 16 ? 8 : 4) / R;
        weights += row * kPartKeys;
        float* sums = states + row * stride + kStateHeader;
        if (row) ahead = nullptr;
        int dim = 0;
        for (; dim + kPairs * kPair <= layer.v_dim; dim += kPairs * kPair)
            add<R, kPairs>(values, count, dim, weights, sums, ahead);
        if constexpr (kPairs > 2)
            for (; dim + 2 * kPair <= layer.v_dim; dim += 2 * kPair)
                add<R, 2>(values, count, dim, weights, sums, ahead);
        for (; dim < layer.v_dim; dim += kPair) add<R, 1>(values, count, dim, weights, sums, ahead);
    }

    // R rows and P pairs of columns in registers; the last pair may be cut short.
    template <int R, int P>
    void add(const T* values, int count, int dim, const float* weights, float* sums,
             const T* ahead) {
        const int rest = layer.v_dim - dim;
        Pair in[R][P];
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) {
                const float* from = sums + r * stride + dim + p * kPair;
                in[r][p] = {load<Floats>(from), load<Floats>(from + kWidth)};
            }
        for (int key = 0; key < count; ++key) {
            const int64_t start = int64_t(key) * layer.v_dim + dim;
            if (ahead) prefetch(ahead + start, P * kPair);
            for (int p = 0; p < P; ++p) {
                const T* from = values + start + p * kPair;
                const Pair value = P > 1 ? load_pair(from) : load_pair(from, rest);
                for (int r = 0; r < R; ++r) {
                    const Floats weight = splat(weights[r * kPartKeys + key]);
                    in[r][p].low += weight * value.low;
                    in[r][p].high += weight * value.high;
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) {
                float* to = sums + r * stride + dim + p * kPair;
                store(to, in[r][p].low);
                store(to + kWidth, in[r][p].high);
            }
    }
};

}  // namespace
}  // namespace baton
