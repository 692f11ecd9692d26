// The same as part_kernel.h by tiles of bfloat16, which leave nearly all of the time to memory.
// Keys and values are loaded from their pages as they are:
// - keys times queries: a tile of 16 keys is the left side, the transposed queries are the right;
// - weights times values: a tile of 16 values is the right side, where two neighbours along the
//   dimension take the place of two along the sum. Each row of weights is there twice, as
//   (w, 0, w, 0, ...) and as (0, w, 0, w, ...): products with even and with odd elements.
#pragma once

#include "matrix.h"
#include "part_kernel.h"

namespace baton {
namespace {

struct PartTiles : PartWork<Bf16> {
    static constexpr int kQueryRows = 16;  // of one tile of queries
    static constexpr int kWeightRows = 8;  // of one tile of weights

    int num_padded;     // rows, to whole tiles of queries
    uint32_t* queries;  // [num_padded / 16, k_dim / 2, 16], a pair of elements each
    Bf16* query_rows;   // [16, k_dim]
    float* products;    // [16, 16]
    uint32_t* weights;  // [16, 16]
    Bf16* rest;         // [16, v_dim]: the last values, and zeros behind them

    static bool can_do(const Layer& layer) {
        return layer.k_dim % kPair == 0 && layer.v_dim % kPair == 0 &&
               layer.block_size % kGroupKeys == 0;
    }

    // What attend_part says (attention.h).
    static void attend(const Rows& rows, int num_rows, int part, int end_key, float* states,
                       Arena& arena) {
        if (!can_do(*rows.layer))
            return PartKernel<Bf16>::attend(rows, num_rows, part, end_key, states, arena);
        PartTiles kernel{{rows, num_rows, part, end_key}};
        kernel.reserve(arena);
        kernel.copy_queries();
        const TileUse tiles;
        kernel.multiply_keys();
        kernel.weigh(states);
        kernel.add_values(states);
    }

    void reserve(Arena& arena) {
        num_padded = round_up(num_rows, kQueryRows);
        const int64_t sizes[] = {int64_t(num_padded) * kPartKeys * 4,
                                 int64_t(num_padded) * layer.k_dim * 2,
                                 kQueryRows * layer.k_dim * 2,
                                 1024,
                                 1024,
                                 kGroupKeys * layer.v_dim * 2};
        int64_t total = 0;
        for (const int64_t size : sizes) total += size;
        char* memory = static_cast<char*>(arena.reserve(total));
        scores = reinterpret_cast<float*>(memory);
        queries = reinterpret_cast<uint32_t*>(memory += sizes[0]);
        query_rows = reinterpret_cast<Bf16*>(memory += sizes[1]);
        products = reinterpret_cast<float*>(memory += sizes[2]);
        weights = reinterpret_cast<uint32_t*>(memory += sizes[3]);
        rest = reinterpret_cast<Bf16*>(memory += sizes[4]);
    }

    void copy_queries() {
        std::fill(query_rows, query_rows + kQueryRows * layer.k_dim, Bf16{});
        for_each_query([&](int row, const Bf16* query) {
            const int in_tile = row % kQueryRows;
            std::copy(query, query + layer.k_dim, query_rows + in_tile * layer.k_dim);
            if (in_tile == kQueryRows - 1 || row == num_rows - 1)
                transpose(reinterpret_cast<const uint32_t*>(query_rows), layer.k_dim / 2,
                          layer.k_dim / 2,
                          queries + row / kQueryRows * kQueryRows * layer.k_dim / 2);
        });
    }

    void multiply_keys() {
        for_each_group([&](int key, int, int) {
            const Bf16* ahead = ahead_of_keys(key);
            for (int row = 0; row < num_rows; row += kQueryRows) {
                multiply(keys(key), queries + row * layer.k_dim / 2, row ? nullptr : ahead);
                copy_products(std::min(kQueryRows, num_rows - row),
                              scores + row * kPartKeys + key - origin);
            }
        });
    }

    // To `products`, [keys, queries].
    void multiply(const Bf16* keys, const uint32_t* queries, const Bf16* ahead) {
        clear_tile<0>();
        for (int dim = 0; dim < layer.k_dim; dim += kPair) {
            if (ahead) prefetch(ahead + dim * kGroupKeys, kPair * kGroupKeys);
            load_tile<4>(keys + dim, layer.k_dim * 2);
            load_tile<6>(queries + dim / 2 * kQueryRows, 64);
            multiply_tiles<0, 4, 6>();
        }
        store_tile<0>(products, 64);
    }

    // To [queries, keys].
    void copy_products(int row_count, float* to) {
        alignas(64) float turned[kQueryRows * kGroupKeys];
        transpose(products, kQueryRows, kGroupKeys, turned);
        for (int row = 0; row < row_count; ++row)
            store(to + row * kPartKeys, load<Floats>(turned + row * kGroupKeys));
    }

    void add_values(float* states) {
        std::fill(weights, weights + 256, 0u);
        for (int row = 0; row < num_rows; row += kWeightRows)
            for (int dim = 0; dim < layer.v_dim; dim += 4 * kPair)
                add_columns(row, dim, std::min(4, (layer.v_dim - dim) / kPair), states);
    }

    // kWeightRows rows from `row` on, and up to four tiles of columns.
    void add_columns(int row, int dim, int num_tiles, float* states) {
        const int row_count = std::min(kWeightRows, num_rows - row);
        clear_tile<0>();
        clear_tile<1>();
        clear_tile<2>();
        clear_tile<3>();
        for_each_group([&](int key, int num_keys, int) {
            const Bf16* from =
                (num_keys < kGroupKeys ? copy_rest(key, num_keys) : values(key)) + dim;
            const Bf16* ahead = row ? nullptr : ahead_of_values(key) + dim * kGroupKeys;
            copy_weights(row, row_count, key);
            load_tile<4>(weights, 64);
            add_tile<0>(from, ahead);
            if (num_tiles > 1) add_tile<1>(from, ahead);
            if (num_tiles > 2) add_tile<2>(from, ahead);
            if (num_tiles > 3) add_tile<3>(from, ahead);
        });
        float* to = states + row * stride + kStateHeader + dim;
        write_tile<0>(to, row_count);
        if (num_tiles > 1) write_tile<1>(to, row_count);
        if (num_tiles > 2) write_tile<2>(to, row_count);
        if (num_tiles > 3) write_tile<3>(to, row_count);
    }

    template <int N>
    void add_tile(const Bf16* from, const Bf16* ahead) {
        if (ahead) prefetch(ahead + N * kPair * kGroupKeys, kPair * kGroupKeys);
        load_tile<6>(from + N * kPair, layer.v_dim * 2);
        multiply_tiles<N, 4, 6>();
    }

    template <int N>
    void write_tile(float* to, int row_count) {
        store_tile<N>(products, 64);
        for (int r = 0; r < row_count; ++r)
            std::copy(products + r * kPair, products + (r + 1) * kPair,
                      to + r * stride + N * kPair);
    }

    // A row's weights times even elements, and the same times odd ones.
    void copy_weights(int row, int row_count, int key) {
        for (int r = 0; r < row_count; ++r) {
            const Words rounded =
                round_to_bf16(load<Floats>(scores + (row + r) * kPartKeys + key - origin));
            store(weights + r * kPair, rounded >> 16);
            store(weights + r * kPair + kWidth, rounded);
        }
        if (row_count < kWeightRows && row > 0)
            std::fill(weights + row_count * kPair, weights + 256, 0u);
    }

    const Bf16* copy_rest(int key, int num_keys) {
        const Bf16* from = values(key);
        Bf16* to = std::copy(from, from + num_keys * layer.v_dim, rest);
        std::fill(to, rest + kGroupKeys * layer.v_dim, Bf16{});
        return rest;
    }
};

}  // namespace
}  // namespace baton
