// Many query rows over all keys that they see, for prefill: tiles of keys and values are packed
// once for all rows of the call, multiplied as matrices, and weighed with a running maximum. Tiles
// are aligned to the sequence's start, so a row's result does not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "matrix.h"
#include "softmax.h"

namespace baton {
namespace {

constexpr int kTileKeys = 128;

template <class T>
struct ChunkKernel {
    // Factors are kept as they are where there is an instruction for them, else as float32.
    static constexpr bool kDots = kHasBf16Dots && std::is_same_v<T, Bf16>;
    using Factor = std::conditional_t<kDots, T, float>;
    using Word = std::conditional_t<kDots, uint32_t, float>;
    static constexpr int kPerWord = sizeof(Word) / sizeof(Factor);

    const Rows& rows;
    const Layer& layer;
    const int first_row;  // rows [first_row, end_row)
    const int end_row;
    const int padded_rows;
    const int k_dim;  // rounded up, alike v_dim
    const int v_dim;
    Factor *queries, *key_row, *keys, *values, *weights;
    float *products, *sums, *highest, *totals;

    // What attend_chunk says (attention.h).
    static void attend(const Rows& rows, int first_row, int end_row, Arena& arena) {
        const Layer& layer = *rows.layer;
        ChunkKernel kernel{rows, layer, first_row, end_row, round_up(end_row - first_row, kTileRows),
                           round_up(layer.k_dim, kPair), round_up(layer.v_dim, kPair)};
        kernel.reserve(arena);
        kernel.copy_queries();
        [[maybe_unused]] const TileUse tiles;
        const int end = rows.position(end_row - 1) + 1;
        const int first = rows.first_key(rows.position(first_row));
        for (int origin = first / kTileKeys * kTileKeys; origin < end; origin += kTileKeys)
            kernel.add_tile(origin, std::max(first, origin), std::min(end, origin + kTileKeys));
        kernel.write();
    }

    void reserve(Arena& arena) {
        const auto size = [](int64_t count, int64_t element) { return (count * element + 63) / 64 * 64; };
        const int64_t sizes[] = {
            size(int64_t(padded_rows) * k_dim, sizeof(Factor)),
            size(kWidth * k_dim, sizeof(Factor)),
            size(kTileKeys * k_dim, sizeof(Factor)),
            size(kTileKeys * v_dim, sizeof(Factor)),
            size(kTileRows * kTileKeys, sizeof(Factor)),
            size(kTileRows * kTileKeys, 4),
            size(int64_t(padded_rows) * v_dim, 4),
            size(padded_rows, 4),
            size(padded_rows, 4),
        };
        int64_t total = 0;
        for (const int64_t bytes : sizes) total += bytes;
        char* memory = static_cast<char*>(arena.reserve(total));
        const int64_t* bytes = sizes;
        for (Factor** buffer : {&queries, &key_row, &keys, &values, &weights}) {
            *buffer = reinterpret_cast<Factor*>(memory);
            memory += *bytes++;
        }
        for (float** buffer : {&products, &sums, &highest, &totals}) {
            *buffer = reinterpret_cast<float*>(memory);
            memory += *bytes++;
        }
        std::fill(weights, weights + kTileRows * kTileKeys, Factor{});
        std::fill(sums, sums + int64_t(padded_rows) * v_dim, 0.0f);
        std::fill(highest, highest + padded_rows, kNoMaximum);
        std::fill(totals, totals + padded_rows, 0.0f);
    }

    // A vector as factors, zeros behind its end; the lanes' order is load_pair's or, for dots, as is.
    void copy(const T* from, Factor* to) const {
        if constexpr (kDots) {
            std::copy(from, from + layer.k_dim, to);
            std::fill(to + layer.k_dim, to + k_dim, Factor{});
        } else {
            for (int dim = 0; dim < layer.k_dim; dim += kPair)
                store_pair(to + dim, load_pair(from + dim, layer.k_dim - dim));
        }
    }

    void copy_queries() {
        const Heads& from = rows.queries;
        const int num_rows = end_row - first_row;
        for (int r = 0; r < num_rows; ++r) {
            const int row = first_row + r;
            copy(reinterpret_cast<const T*>(from.data) + row / rows.group * from.token_stride +
                     row % rows.group * from.head_stride,
                 queries + int64_t(r) * k_dim);
        }
        std::fill(queries + int64_t(num_rows) * k_dim, queries + int64_t(padded_rows) * k_dim, Factor{});
    }

    const T* vector(char* pages, int key, int dim) const {
        const int64_t block = rows.table[key / layer.block_size];
        const int64_t slot = int64_t(rows.kv_head) * layer.block_size + key % layer.block_size;
        return reinterpret_cast<const T*>(pages + block * layer.block_stride_bytes) + slot * dim;
    }

    // Keys [first, end) of the tile that begins at `origin`.
    void add_tile(int origin, int first, int end) {
        const int num_keys = round_up(end - origin, kPair);
        pack_keys(origin, first, end, num_keys);
        pack_values(origin, first, end, num_keys);
        const int k_words = k_dim / kPerWord, key_words = num_keys / kPerWord;
        const Right of_keys{keys, k_words * kWidth, k_words, num_keys / kWidth};
        const Right of_values{values, kTileKeys / kPerWord * kWidth, key_words, v_dim / kWidth};
        for (int r = 0; r < padded_rows; r += kTileRows) {
            const int last = std::min(first_row + r + kTileRows, end_row) - 1;
            if (rows.position(last) < first) continue;
            if (rows.first_key(rows.position(first_row + r)) >= end) continue;
            const Left of_rows{queries + int64_t(r) * k_dim, k_words};
            multiply<Word, false>(of_rows, of_keys, products, kTileKeys);
            for (int row = first_row + r; row <= last; ++row) weigh(row, origin, first, end, num_keys);
            const Left of_weights{weights, kTileKeys / kPerWord};
            multiply<Word, true>(of_weights, of_values, sums + int64_t(r) * v_dim, v_dim);
        }
    }

    // One row's products to weights, and what was summed before to the new maximum.
    void weigh(int row, int origin, int first, int end, int num_keys) {
        const int r = row - first_row, t = r % kTileRows;
        const int position = rows.position(row);
        const int first_seen = std::max(rows.first_key(position), first) - origin;
        const int end_seen = std::min(position + 1, end) - origin;
        float* of_row = products + t * kTileKeys;
        const Scorer scorer(*rows.form);
        const float before = highest[r];
        const float now = std::max(before, score_row(scorer, of_row, num_keys, first_seen, end_seen));
        if (now > before) {
            const float factor = exp2(before - now);
            totals[r] *= factor;
            float* to = sums + int64_t(r) * v_dim;
            for (int dim = 0; dim < v_dim; dim += kWidth) store(to + dim, load<Floats>(to + dim) * factor);
            highest[r] = now;
        }
        if constexpr (kDots) {
            totals[r] += weigh_row(of_row, num_keys, now, weights + t * kTileKeys);
        } else {
            totals[r] += weigh_row(of_row, num_keys, now);
            std::copy(of_row, of_row + num_keys, weights + t * kTileKeys);
        }
    }

    void pack_keys(int origin, int first, int end, int num_keys) {
        for (int panel = 0; panel < num_keys; panel += kWidth) {
            for (int i = 0; i < kWidth; ++i) {
                const int key = origin + panel + i;
                Factor* to = key_row + i * k_dim;
                if (first <= key && key < end) copy(vector(layer.keys, key, layer.k_dim), to);
                else std::fill(to, to + k_dim, Factor{});
            }
            transpose(reinterpret_cast<const Word*>(key_row), k_dim / kPerWord,
                      reinterpret_cast<Word*>(keys + panel * k_dim));
        }
    }

    void pack_values(int origin, int first, int end, int num_keys) {
        static const T zeros[1024] = {};
        const auto value = [&](int key) {
            return first <= key && key < end ? vector(layer.values, key, layer.v_dim) : nullptr;
        };
        const int panel_stride = kTileKeys * kWidth;
        for (int i = 0; i < num_keys; i += kPerWord) {
            const T* even = value(origin + i);
            const T* odd = value(origin + i + kPerWord - 1);
            Factor* to = values + i * kWidth;
            for (int dim = 0; dim < v_dim; dim += kPair, to += 2 * panel_stride) {
                const Pair of_even = even ? load_pair(even + dim, layer.v_dim - dim) : load_pair(zeros);
                if constexpr (kDots) {
                    const Pair of_odd = odd ? load_pair(odd + dim, layer.v_dim - dim) : load_pair(zeros);
                    store(to, (Words)of_even.low >> 16 | (Words)of_odd.low);
                    store(to + panel_stride, (Words)of_even.high >> 16 | (Words)of_odd.high);
                } else {
                    store(to, of_even.low);
                    store(to + panel_stride, of_even.high);
                }
            }
        }
    }

    void write() {
        for (int row = first_row; row < end_row; ++row) {
            const int r = row - first_row;
            const float sink = sink_score(rows, row);
            const float top = std::max(highest[r], sink);
            const float weight = exp2(highest[r] - top);
            const float total = weight * totals[r] + exp2(sink - top);
            T* output = reinterpret_cast<T*>(rows.output) + row / rows.group * rows.output_token_stride +
                        row % rows.group * layer.v_dim;
            write_row(output, sums + int64_t(r) * v_dim, layer.v_dim, weight / total);
        }
    }
};

}  // namespace
}  // namespace baton
