// How matrices lie in memory, the same for every instruction set and for float32 and bfloat16.
//
// A *chunk* is 64 bytes of one row along k: 16 float32 or 32 bfloat16 values, so k is padded with
// zeros to whole chunks. Activations are *tiled*: 16 rows by one chunk (1 KiB) lie together, then
// the next chunk of the same rows. Weights are *panels* of 32 rows of the weight, that is, columns
// of the product: for each chunk two halves of 1 KiB, each the 16 columns of one 4-byte slice of k
// (a float32, or a pair of bfloat16) after the other. A panel is read once, front to back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace baton {

constexpr int kChunkBytes = 64;
constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * kChunkBytes;
constexpr int kPanelColumns = 32;
constexpr int kHalfColumns = 16;
constexpr int kPanelStepBytes = 2 * kTileBytes;  // of one chunk of k

static inline int value_bytes(Dtype dtype) { return dtype == kBfloat16 ? 2 : 4; }
static inline int num_chunks(Dtype dtype, int k) {
    return (k * value_bytes(dtype) + kChunkBytes - 1) / kChunkBytes;
}

// A weight in panels. `bias` is float32 [num_columns] or null. Mirrored in native_structs.py.
struct Matrix {
    const uint8_t* panels;
    const float* bias;
    int32_t num_columns;
    int32_t num_chunks;

};

static inline int num_panels(const Matrix& matrix) {
    return (matrix.num_columns + kPanelColumns - 1) / kPanelColumns;
}
static inline const uint8_t* panel_at(const Matrix& matrix, int index) {
    return matrix.panels + static_cast<size_t>(index) * matrix.num_chunks * kPanelStepBytes;
}

// Where the chunk of a row begins in tiled activations.
static inline size_t tiled_offset(int row, int chunk, int chunks) {
    const size_t tile = static_cast<size_t>(row / kTileRows) * chunks + chunk;
    return tile * kTileBytes + (row % kTileRows) * kChunkBytes;
}

}  // namespace baton
