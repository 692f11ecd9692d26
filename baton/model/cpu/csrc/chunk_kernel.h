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

constexpr int kTileKeys = 256;
// Rows that go through a tile of keys together: many reuse it, few leave room for it in the cache.
constexpr int kTileRows = 64;
// Rows of buffers are a line longer than needed: lines whose distance is a power of two fight for
// the same places in the cache.
constexpr int kProductStride = kTileKeys + 16, kWeightStride = kTileKeys + 32;

template <class T>
struct ChunkKernel {
    // Factors are kept as they are where there is an instruction for them, else as float32.
    static constexpr bool kDots = kHasBf16Dots && std::is_same_v<T, Bf16>;
    using Factor = std::conditional_t<kDots, T, float>;
    using Word = std::conditional_t<kDots, uint32_t, float>;
    static constexpr int kPerWord = sizeof(Word) / sizeof(Factor);
    static constexpr int kPanelStride = (kTileKeys / kPerWord + 1) * kWidth;  // of values, in words

    const Rows& rows;
    const Layer& layer;
    const int first_row;  // rows [first_row, end_row)
    const int end_row;
    const int padded_rows;
    const int k_dim;  // rounded up, alike v_dim
    const int v_dim;
    Factor *queries, *key_row, *keys, *values, *weights;
    T* zeros;  // a key or value that is not there
    float *products, *sums, *highest;
    Floats* totals;  // of each row, to be added up
    const Scorer scorer{*rows.form};

    // What attend_chunk says (attention.h).
    static void attend(const Rows& rows, int first_row, int end_row, Arena& arena) {
        const Layer& layer = *rows.layer;
        ChunkKernel kernel{rows,
                           layer,
                           first_row,
                           end_row,
                           round_up(end_row - first_row, kRowUnit),
                           round_up(layer.k_dim, kPair),
                           round_up(layer.v_dim, kPair)};
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
        const auto size = [](int64_t count, int64_t element) {
            return (count * element + 63) / 64 * 64;
        };
        const int64_t sizes[] = {
            size(int64_t(padded_rows) * k_dim, sizeof(Factor)),
            size(kWidth * k_dim, sizeof(Factor)),
            size(kTileKeys * k_dim, sizeof(Factor)),
            size(v_dim / kWidth * kPanelStride, sizeof(Word)),
            size(kTileRows * kWeightStride, sizeof(Factor)),
            size(kTileRows * kProductStride, 4),
            size(int64_t(padded_rows) * v_dim, 4),
            size(padded_rows, 4),
            size(padded_rows, sizeof(Floats)),
            size(std::max(k_dim, v_dim), sizeof(T)),
        };
        int64_t total = 0;
        for (const int64_t bytes : sizes) total += bytes;
        char* memory = static_cast<char*>(arena.reserve(total));
        const int64_t* bytes = sizes;
        for (Factor** buffer : {&queries, &key_row, &keys, &values, &weights}) {
            *buffer = reinterpret_cast<Factor*>(memory);
            memory += *bytes++;
        }
        for (float** buffer : {&products, &sums, &highest}) {
            *buffer = reinterpret_cast<float*>(memory);
            memory += *bytes++;
        }
        totals = reinterpret_cast<Floats*>(memory);
        zeros = reinterpret_cast<T*>(memory + *bytes);
        std::fill(zeros, zeros + std::max(k_dim, v_dim), T{});
        std::fill(weights, weights + kTileRows * kWeightStride, Factor{});
        std::fill(sums, sums + int64_t(padded_rows) * v_dim, 0.0f);
        std::fill(highest, highest + padded_rows, kNoMaximum);
        std::fill(totals, totals + padded_rows, splat(0.0f));
    }

    // A vector as factors, zeros behind its end; the lanes' order is load_pair's or, for dots, as
    // is.
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
        std::fill(queries + int64_t(num_rows) * k_dim, queries + int64_t(padded_rows) * k_dim,
                  Factor{});
    }

    // Goes through the vectors of consecutive keys [first, end); before and behind, through zeros.
    struct Walk {
        const ChunkKernel& kernel;
        char* const pages;
        const int dim, first, end;
        int key;
        const T* next_one = nullptr;
        int num_together = 0;  // from the next one on, in one block and before the end

        const T* next() { return skip(1); }
        // The next vector, when `count` that lie together are then left behind.
        const T* skip(int count) {
            if (num_together == 0) look();
            const T* one = next_one;
            if (first <= key && key < end) next_one += count * dim;
            num_together -= count;
            key += count;
            return one;
        }
        void look() {
            const Layer& layer = kernel.layer;
            if (key < first || key >= end) {
                next_one = kernel.zeros;
                num_together = key < first ? first - key : kTileKeys;
                return;
            }
            const int slot = key % layer.block_size;
            const int64_t block = kernel.rows.table[key / layer.block_size];
            next_one = reinterpret_cast<const T*>(pages + block * layer.block_stride_bytes) +
                       (int64_t(kernel.rows.kv_head) * layer.block_size + slot) * dim;
            num_together = std::min(layer.block_size - slot, end - key);
        }
        // How many vectors from the next one on are known to lie together; zeros do not.
        int num_real() {
            if (num_together == 0) look();
            return first <= key && key < end ? num_together : 0;
        }
    };

    // Keys [first, end) of the tile that begins at `origin`.
    void add_tile(int origin, int first, int end) {
        const int num_keys = round_up(end - origin, kPair);
        pack_keys(origin, first, end, num_keys);
        pack_values(origin, first, end, num_keys);
        const int k_words = k_dim / kPerWord;
        for (int r = 0; r < padded_rows; r += kTileRows) {
            const int num_rows = std::min(kTileRows, padded_rows - r);
            const int last = std::min(first_row + r + num_rows, end_row) - 1;
            const int end_seen = std::min(rows.position(last) + 1, end);
            if (end_seen <= first || rows.first_key(rows.position(first_row + r)) >= end) continue;
            const int num_seen = round_up(end_seen - origin, kPair);
            const Left of_rows{queries + int64_t(r) * k_dim, k_words, num_rows};
            const Right of_keys{keys, k_words * kWidth, k_words, num_seen / kWidth};
            multiply<Word, false>(of_rows, of_keys, products, kProductStride);
            weigh(r, last - first_row, origin, first, num_seen);
            const Left of_weights{weights, kWeightStride / kPerWord, num_rows};
            const Right of_values{values, kPanelStride, num_seen / kPerWord, v_dim / kWidth};
            multiply<Word, true>(of_weights, of_values, sums + int64_t(r) * v_dim, v_dim);
        }
    }

    // Products to weights for the rows [r, last], and what was summed before to the new maxima.
    void weigh(int r, int last, int origin, int first, int num_keys) {
        // Products may be weighed as they are if scores are a multiple of them.
        const float factor = scorer.is_linear() ? scorer.factor : 1.0f;
        float maxima[kTileRows];
        for (int i = r; i <= last; ++i) {
            const int position = rows.position(first_row + i);
            const int first_seen = std::max(rows.first_key(position), first) - origin;
            const int end_seen = position + 1 - origin;
            float* of_row = products + (i - r) * kProductStride;
            if (!scorer.is_linear()) score_row(scorer, of_row, num_keys);
            if (first_seen > 0 || end_seen < num_keys) hide(of_row, num_keys, first_seen, end_seen);
            maxima[i - r] = highest_of(of_row, num_keys) * factor;
        }
        for (int i = r; i <= last; ++i) {
            if (maxima[i - r] > highest[i]) {
                rescale(i, exp2(highest[i] - maxima[i - r]));
                highest[i] = maxima[i - r];
            }
            totals[i] += weigh_row(products + (i - r) * kProductStride, num_keys, factor,
                                   highest[i], weights + (i - r) * kWeightStride);
        }
    }

    void rescale(int r, float factor) {
        totals[r] *= factor;
        float* to = sums + int64_t(r) * v_dim;
        for (int dim = 0; dim < v_dim; dim += kWidth)
            store(to + dim, load<Floats>(to + dim) * factor);
    }

    void pack_keys(int origin, int first, int end, int num_keys) {
        const int num_words = k_dim / kPerWord;
        Walk walk{*this, layer.keys, layer.k_dim, first, end, origin};
        for (int panel = 0; panel < num_keys; panel += kWidth) {
            Word* to = reinterpret_cast<Word*>(keys + panel * k_dim);
            const void* from = key_row;
            if (kDots && k_dim == layer.k_dim && walk.num_real() >= kWidth)
                from = walk.skip(kWidth);
            else
                for (int i = 0; i < kWidth; ++i) copy(walk.next(), key_row + i * k_dim);
            transpose(static_cast<const Word*>(from), num_words, num_words, to);
        }
    }

    void pack_values(int origin, int first, int end, int num_keys) {
        Walk walk{*this, layer.values, layer.v_dim, first, end, origin};
        for (int i = 0; i < num_keys; i += kPerWord) {
            const T* even = walk.next();
            [[maybe_unused]] const T* odd = kDots ? walk.next() : nullptr;
            Word* to = reinterpret_cast<Word*>(values) + i / kPerWord * kWidth;
            for (int dim = 0; dim < v_dim; dim += kPair, to += 2 * kPanelStride) {
                Pair pair = load_pair(even + dim, layer.v_dim - dim);
                if constexpr (kDots) {
                    const Pair above = load_pair(odd + dim, layer.v_dim - dim);
                    pair.low = (Floats)((Words)pair.low >> 16 | (Words)above.low);
                    pair.high = (Floats)((Words)pair.high >> 16 | (Words)above.high);
                }
                store(to, pair.low);
                store(to + kPanelStride, pair.high);
            }
        }
    }

    void write() {
        for (int row = first_row; row < end_row; ++row) {
            const int r = row - first_row;
            const float sink = sink_score(rows, row);
            const float top = std::max(highest[r], sink);
            const float weight = exp2(highest[r] - top);
            const float total = weight * sum_of(totals[r]) + exp2(sink - top);
            T* output = reinterpret_cast<T*>(rows.output) +
                        row / rows.group * rows.output_token_stride +
                        row % rows.group * layer.v_dim;
            write_row(output, sums + int64_t(r) * v_dim, layer.v_dim, weight / total);
        }
    }
};

}  // namespace
}  // namespace baton
