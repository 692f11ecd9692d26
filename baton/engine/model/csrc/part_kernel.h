// Few query rows over one part of the keys, for decoding. Bound by memory: each key and value is
// read once, in the order of the pages, and the next block is prefetched meanwhile. What a row gets
// does not depend on the other rows.
#pragma once

#include <algorithm>
#include <type_traits>

#include "softmax.h"

namespace baton {
namespace {

// Keys that are scored together; a group of them never crosses a block.
constexpr int kGroupKeys = 16;

inline void prefetch(const void* from, int64_t num_bytes) {
    for (int64_t byte = 0; byte < num_bytes; byte += 64)
        __builtin_prefetch(static_cast<const char*>(from) + byte);
}

#if defined(__AVX512BF16__)
// The 16 sums of the lanes of 16 vectors.
inline Floats sums_of(__m512 (&v)[16]) {
    for (int i = 0; i < 8; ++i)
        v[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 4; ++i) {
        const __m512d a = _mm512_castps_pd(v[2 * i]), b = _mm512_castps_pd(v[2 * i + 1]);
        v[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    for (int n = 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i)
            v[i] = _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88) +
                   _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd);
    return (Floats)v[0];
}

// Products of one query, padded with zeros, and 16 keys. Slots from `num_slots` on repeat the last.
inline Floats bf16_dots(const Bf16* query, const Bf16* keys, int k_dim, int num_slots) {
    __m512 sums[kGroupKeys];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    int dim = 0;
    const auto add = [&](__mmask32 mask, int64_t stride, int last) {
        const __m512bh of_query = (__m512bh)_mm512_loadu_si512(query + dim);
        for (int i = 0; i < kGroupKeys; ++i) {
            const Bf16* key = keys + std::min(i, last) * stride + dim;
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_maskz_loadu_epi16(mask, key), of_query);
        }
    };
    const int last = num_slots < kGroupKeys ? num_slots - 1 : kGroupKeys;
    for (; dim + 32 <= k_dim; dim += 32) {
        if (last == kGroupKeys) add(~0u, k_dim, kGroupKeys);
        else add(~0u, k_dim, last);
    }
    if (dim < k_dim) add((1u << (k_dim - dim)) - 1, k_dim, last);
    return sums_of(sums);
}
#endif

template <class T>
struct PartKernel {
    // Queries are kept as they are where there is an instruction for them, else as float32.
    static constexpr bool kDots = kHasBf16Dots && std::is_same_v<T, Bf16>;
    using Query = std::conditional_t<kDots, T, float>;

    const Rows& rows;
    const Layer& layer;
    const int num_rows;
    const int first;   // keys [first, end) are attended
    const int end;
    const int origin;  // the key of the index 0 in `scores`
    const int query_stride;
    const int64_t stride;  // of states
    float* const scores;   // [num_rows, kPartKeys]
    Query* const queries;  // [num_rows, query_stride]

    // What attend_part says (attention.h).
    static void attend(const Rows& rows, int num_rows, int part, int end_key, float* states, Arena& arena) {
        const int query_stride = round_up(rows.layer->k_dim, kPair);
        const int64_t score_bytes = int64_t(num_rows) * kPartKeys * 4;
        const int64_t query_bytes = int64_t(num_rows) * query_stride * sizeof(Query);
        char* memory = static_cast<char*>(arena.reserve(score_bytes + query_bytes));
        const int origin = part * kPartKeys;
        const int first = std::max(rows.first_key(rows.position(0)), origin);
        PartKernel kernel{rows, *rows.layer, num_rows, first, end_key, origin, query_stride,
                          state_stride(*rows.layer), reinterpret_cast<float*>(memory),
                          reinterpret_cast<Query*>(memory + score_bytes)};
        kernel.copy_queries();
        kernel.multiply_keys();
        kernel.weigh(states);
        kernel.add_values(states);
    }

    const T* page(char* pages, int key, int dim) const {
        const int64_t block = rows.table[key / layer.block_size];
        const int64_t slot = int64_t(rows.kv_head) * layer.block_size + key % layer.block_size;
        return reinterpret_cast<const T*>(pages + block * layer.block_stride_bytes) + slot * dim;
    }

    // Where the same slots of the next block are; null if there is none.
    const T* next_page(char* pages, int key, int dim) const {
        const int next = key + layer.block_size;
        return next < end ? page(pages, next, dim) : nullptr;
    }

    // Groups of keys that lie together: calls use(first key, number of keys, number of slots).
    template <class Use>
    void for_each_group(Use use) const {
        for (int key = first; key < end;) {
            const int slot = key % layer.block_size;
            const int num_left = origin + kPartKeys - key;
            const int num_slots = std::min({kGroupKeys, layer.block_size - slot, num_left});
            use(key, std::min(num_slots, end - key), num_slots);
            key += num_slots;
        }
    }

    void copy_queries() {
        const Heads& from = rows.queries;
        for (int row = 0; row < num_rows; ++row) {
            const T* query = reinterpret_cast<const T*>(from.data) +
                             row / rows.group * from.token_stride + row % rows.group * from.head_stride;
            Query* to = queries + row * query_stride;
            if constexpr (kDots) {
                std::fill(to + layer.k_dim, to + query_stride, Query{});
                std::copy(query, query + layer.k_dim, to);
            } else {
                for (int dim = 0; dim < layer.k_dim; dim += kPair)
                    store_pair(to + dim, load_pair(query + dim, layer.k_dim - dim));
            }
        }
    }

    void weigh(float* states) {
        const int count = round_up(end - origin, kWidth);
        const Scorer scorer(*rows.form);
        for (int row = 0; row < num_rows; ++row) {
            const int position = rows.position(row);
            const int first_seen = std::max(rows.first_key(position), first) - origin;
            const int end_seen = std::min(position + 1, end) - origin;
            float* of_row = scores + row * kPartKeys;
            float* state = states + row * stride;
            state[0] = score_row(scorer, of_row, count, first_seen, end_seen);
            state[1] = weigh_row(of_row, count, state[0]);
            std::fill(state + kStateHeader, state + stride, 0.0f);
        }
    }

    // ---- Products of queries and keys ----------------------------------------------------------

    void multiply_keys() {
        for_each_group([&](int key, int, int num_slots) {
            const T* keys = page(layer.keys, key, layer.k_dim);
            const T* next = next_page(layer.keys, key, layer.k_dim);
            if (next) prefetch(next, num_slots * layer.k_dim * sizeof(T));
            else prefetch(page(layer.values, first, layer.v_dim), kGroupKeys * layer.v_dim * sizeof(T));
            multiply_group(keys, num_slots, scores + key - origin);
        });
    }

    void multiply_group(const T* keys, int num_slots, float* to) {
        if constexpr (kDots) {
            const __mmask16 mask = (1u << num_slots) - 1;
            for (int row = 0; row < num_rows; ++row) {
                const Floats dots = bf16_dots(queries + row * query_stride, keys, layer.k_dim, num_slots);
                _mm512_mask_storeu_ps(to + row * kPartKeys, mask, (__m512)dots);
            }
        } else {
            int row = 0;
            for (; row + 2 <= num_rows; row += 2) multiply_rows<2>(keys, num_slots, row, to);
            for (; row < num_rows; ++row) multiply_rows<1>(keys, num_slots, row, to);
        }
    }

    template <int R>
    void multiply_rows(const T* keys, int num_slots, int row, float* to) {
        int key = 0;
        for (; key + 4 <= num_slots; key += 4) multiply<R, 4>(keys + key * layer.k_dim, row, to + key);
        for (; key < num_slots; ++key) multiply<R, 1>(keys + key * layer.k_dim, row, to + key);
    }

    // R rows and N keys in registers.
    template <int R, int N>
    void multiply(const T* keys, int row, float* to) {
        Floats sums[R][N] = {};
        const float* query = queries + row * query_stride;
        for (int dim = 0; dim < layer.k_dim; dim += kPair) {
            for (int n = 0; n < N; ++n) {
                const Pair key = load_pair(keys + n * layer.k_dim + dim, layer.k_dim - dim);
                for (int r = 0; r < R; ++r) {
                    sums[r][n] += load<Floats>(query + r * query_stride + dim) * key.low;
                    sums[r][n] += load<Floats>(query + r * query_stride + dim + kWidth) * key.high;
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) to[(row + r) * kPartKeys + n] = sum_of(sums[r][n]);
    }

    // ---- Weighted sums of values ---------------------------------------------------------------

    void add_values(float* states) {
        for_each_group([&](int key, int num_keys, int) {
            const T* values = page(layer.values, key, layer.v_dim);
            const T* next = next_page(layer.values, key, layer.v_dim);
            if (next) prefetch(next, num_keys * layer.v_dim * sizeof(T));
            const float* weights = scores + key - origin;
            int row = 0;
            for (; row + 4 <= num_rows; row += 4) add_to_rows<4>(values, weights, num_keys, states, row);
            for (; row + 2 <= num_rows; row += 2) add_to_rows<2>(values, weights, num_keys, states, row);
            for (; row < num_rows; ++row) add_to_rows<1>(values, weights, num_keys, states, row);
        });
    }

    template <int R>
    void add_to_rows(const T* values, const float* weights, int num_keys, float* states, int row) {
        constexpr int kPairs = (kWidth == 16 ? 8 : 4) / R;
        float* sums = states + row * stride + kStateHeader;
        weights += row * kPartKeys;
        int dim = 0;
        for (; dim + kPairs * kPair <= layer.v_dim; dim += kPairs * kPair)
            add<R, kPairs>(values + dim, weights, num_keys, sums + dim, kPair);
        for (; dim < layer.v_dim; dim += kPair)
            add<R, 1>(values + dim, weights, num_keys, sums + dim, layer.v_dim - dim);
    }

    // R rows and P pairs of columns in registers; the last pair has only `rest` columns.
    template <int R, int P>
    void add(const T* values, const float* weights, int num_keys, float* sums, int rest) {
        Pair in[R][P];
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) {
                const float* from = sums + r * stride + p * kPair;
                in[r][p] = {load<Floats>(from), load<Floats>(from + kWidth)};
            }
        for (int key = 0; key < num_keys; ++key) {
            for (int p = 0; p < P; ++p) {
                const T* from = values + key * layer.v_dim + p * kPair;
                const Pair value = P > 1 ? load_pair(from) : load_pair(from, rest);
                for (int r = 0; r < R; ++r) {
                    const Floats weight = splat(weights[r * kPartKeys + key]);
                    in[r][p].low += weight * value.low;
                    in[r][p].high += weight * value.high;
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) store_pair(sums + r * stride + p * kPair, in[r][p]);
    }

    // What merge_parts says (attention.h).
    static void merge(const Rows& rows, int num_rows, float* states, int num_parts, int64_t part_stride) {
        const Layer& layer = *rows.layer;
        for (int row = 0; row < num_rows; ++row) {
            float* state = states + row * state_stride(layer);
            float highest = sink_score(rows, row);
            for (int p = 0; p < num_parts; ++p) highest = std::max(highest, state[p * part_stride]);
            float total = exp2(sink_score(rows, row) - highest);
            for (int p = 0; p < num_parts; ++p) {
                const float* part = state + p * part_stride;
                const float weight = exp2(part[0] - highest);
                total += weight * part[1];
                for (int64_t i = kStateHeader; i < state_stride(layer); i += kWidth) {
                    const Floats scaled = weight * load<Floats>(part + i);
                    store(state + i, p ? load<Floats>(state + i) + scaled : scaled);
                }
            }
            T* output = reinterpret_cast<T*>(rows.output) + row / rows.group * rows.output_token_stride +
                        row % rows.group * layer.v_dim;
            write_row(output, state + kStateHeader, layer.v_dim, 1.0f / total);
        }
    }
};

}  // namespace
}  // namespace baton
