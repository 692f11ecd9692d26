// What all kernels for few query rows over one part of the keys have in common: where the keys
// are, in which order they are read, and the softmax between the two passes.
#pragma once

#include <algorithm>

#include "softmax.h"

namespace baton {
namespace {

// Keys are worked on in groups that begin at multiples of 16 in their block, so that it depends on
// a key's position alone which keys are in its group.
constexpr int kGroupKeys = 16;
// How far ahead memory is asked for. Measured with two threads on 290 MB: one, two, four and eight
// groups ahead 18, 19, 21 and 17 GB/s, of 27 that can be read; not asked for at all 18.
constexpr int kAheadKeys = 4 * kGroupKeys;

// Brings the memory of `count` elements near.
template <class T>
inline void prefetch(const T* from, int count) {
    for (int i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i, 0, 2);
}

template <class T>
struct PartWork {
    const Rows& rows;
    const Layer& layer;
    const int num_rows;
    const int origin;  // the key of the index 0 in `scores`
    const int first;   // keys [first, end) are read, the first of them perhaps hidden to all rows
    const int end;
    const int64_t stride;     // of states
    float* scores = nullptr;  // [num_rows, kPartKeys]

    PartWork(const Rows& rows, int num_rows, int part, int end_key)
        : rows(rows),
          layer(*rows.layer),
          num_rows(num_rows),
          origin(part * kPartKeys),
          first(first_in_part()),
          end(end_key),
          stride(state_stride(layer)) {}

    int first_in_part() const {
        const int seen = std::max(rows.first_key(rows.position(0)), origin);
        return std::max(seen - seen % layer.block_size % kGroupKeys, origin);
    }

    const T* page(char* pages, int key, int dim) const {
        const int64_t block = rows.table[key / layer.block_size];
        const int64_t slot = int64_t(rows.kv_head) * layer.block_size + key % layer.block_size;
        return reinterpret_cast<const T*>(pages + block * layer.block_stride_bytes) + slot * dim;
    }
    const T* keys(int key) const { return page(layer.keys, key, layer.k_dim); }
    const T* values(int key) const { return page(layer.values, key, layer.v_dim); }

    // What is read kAheadKeys after these keys or values. Behind the keys come the values, behind
    // those most likely the keys of the next head.
    const T* ahead_of_keys(int key) const {
        const int ahead = key + kAheadKeys;
        return ahead < end ? keys(ahead) : values(std::min(first + ahead - end, end - 1));
    }
    const T* ahead_of_values(int key) const {
        const int ahead = key + kAheadKeys;
        if (ahead < end) return values(ahead);
        return keys(std::min(first + ahead - end, end - 1)) +
               int64_t(layer.block_size) * layer.k_dim;
    }

    // Calls use(first key, number of keys, number of slots that are there) for each group.
    template <class Use>
    void for_each_group(Use use) const {
        for (int key = first; key < end;) {
            const int slot = key % layer.block_size, num_left = origin + kPartKeys - key;
            const int num_slots = std::min({kGroupKeys, layer.block_size - slot, num_left});
            use(key, std::min(num_slots, end - key), num_slots);
            key += num_slots;
        }
    }

    template <class Copy>
    void for_each_query(Copy copy) const {
        const Heads& from = rows.queries;
        for (int row = 0; row < num_rows; ++row)
            copy(row, reinterpret_cast<const T*>(from.data) + row / rows.group * from.token_stride +
                          row % rows.group * from.head_stride);
    }

    // From products in `scores` to weights, with the header of each state; its sums become 0.
    void weigh(float* states) const {
        const int count = round_up(end - origin, kWidth);
        const Scorer scorer(*rows.form);
        for (int row = 0; row < num_rows; ++row) {
            const int position = rows.position(row);
            const int first_seen = std::max(rows.first_key(position), first) - origin;
            const int end_seen = std::min(position + 1, end) - origin;
            float* of_row = scores + row * kPartKeys;
            float* state = states + row * stride;
            score_row(scorer, of_row, count);
            hide(of_row, count, first_seen, end_seen);
            state[0] = std::max(highest_of(of_row, count), kNoMaximum);
            state[1] = sum_of(weigh_row(of_row, count, 1.0f, state[0], of_row));
            std::fill(state + kStateHeader, state + stride, 0.0f);
        }
    }
};

// What merge_parts says (attention.h).
template <class T>
void merge_parts(const Rows& rows, int num_rows, float* states, int num_parts,
                 int64_t part_stride) {
    const int64_t stride = state_stride(*rows.layer);
    for (int row = 0; row < num_rows; ++row) {
        float* state = states + row * stride;
        const float sink = sink_score(rows, row);
        float highest = sink;
        for (int p = 0; p < num_parts; ++p) highest = std::max(highest, state[p * part_stride]);
        float total = exp2(sink - highest);
        for (int p = 0; p < num_parts; ++p) {
            const float* part = state + p * part_stride;
            const float weight = exp2(part[0] - highest);
            total += weight * part[1];
            for (int64_t i = kStateHeader; i < stride; i += kWidth) {
                const Floats scaled = weight * load<Floats>(part + i);
                store(state + i, p ? load<Floats>(state + i) + scaled : scaled);
            }
        }
        T* output = reinterpret_cast<T*>(rows.output) +
                    row / rows.group * rows.output_token_stride +
                    row % rows.group * rows.layer->v_dim;
        write_row(output, state + kStateHeader, rows.layer->v_dim, 1.0f / total);
    }
}

}  // namespace
}  // namespace baton
