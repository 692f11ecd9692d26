// The arithmetic that has a version per instruction set; everything around it is written once.
#pragma once

#include <utility>

#include "isa.h"
#include "panels.h"

namespace baton {

// out[row][column] (+)= sum over k; `out` is [32][32] whatever `num_rows` (1..32) is, and rows
// beyond it hold nothing. A row's result never depends on how many rows there are.
struct Product {
    const uint8_t* rows;  // tiled, the first of them at the start of a tile
    size_t tile_stride;   // bytes from one tile of 16 rows to the next
    int num_rows;
    const uint8_t* panel;
    int num_chunks;
    bool accumulate;
    const uint8_t* ahead;  // what will be read next: fetched meanwhile,
    int ahead_lines;       // so many cache lines for each chunk
    float* out;
};

// Results of products in the making: `num_rows` rows of 32 columns, of which `num_columns` exist.
struct Block {
    const float* values;
    int num_rows;
    int num_columns;
    const float* bias;  // [num_columns], or null
};

// The sizes of a head that there are kernels for.
using HeadDims = std::integer_sequence<int, 32, 64, 96, 128, 192, 256>;

// A head of some tokens, from a projection to where attention wants it.
struct HeadBlock {
    const float* values;  // panels [dim / 32], `panel_stride` values apart, of rows of 32
    size_t panel_stride;
    int num_rows;
    int dim;             // one of HeadDims
    const float* bias;   // [dim], or null
    const float* norm;   // RMSNorm weight [dim], or null
    float eps;
    const float* cosines;  // [num_rows][dim / 2], or null for no rotation
    const float* sines;
    void* const* outs;  // [num_rows] pointers to [dim] of the dtype
};

struct RowKernels {
    void (*begin)();  // once per thread before products
    void (*end)();    // once after
    // How many chunks of a panel ahead few rows fetch: as long as memory needs to answer.
    int ahead_chunks;
    void (*product[2])(const Product&);
    // RMSNorm of a row of the dtype, as transformers' modules round it: before the weight, too.
    void (*norm_rounded[2])(const void* row, const float* weight, int size, float eps, void* out);
    // RMSNorm of a float32 row to a tiled row; `out` is its first chunk, `size` a multiple of 16.
    void (*norm_row[2])(const float* row, const float* weight, int size, float eps, uint8_t* out);
    // A row of the dtype to a tiled row, and to float32.
    void (*tile_row[2])(const void* row, int size, uint8_t* out);
    void (*widen_row[2])(const void* row, int size, float* out);
    // A chunk of 16 rows of a weight, `stride` bytes apart, to one half of a panel.
    void (*pack_half)(const uint8_t* rows, size_t stride, uint8_t* half);
    // To rows of the dtype, `stride` bytes apart.
    void (*store_block[2])(const Block&, void* out, size_t stride);
    // Added to float32 rows, `stride` values apart.
    void (*add_block)(const Block&, float* sum, size_t stride);
    // silu(gate) * up, where each row is 16 values of gate and 16 of up, to 16 values of the dtype
    // in each tiled row from `out` on.
    void (*silu_block[2])(const Block&, uint8_t* out, size_t tile_stride);
    void (*head_block[2])(const HeadBlock&);
};

const RowKernels& row_kernels_portable();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();
const RowKernels& row_kernels_amx();

// Those of a set, or of the best that this machine has when it lacks that one.
const RowKernels& row_kernels_for(Isa isa);

}  // namespace baton
