// The product of tiled activations and a packed matrix, by the threads of a team.
#pragma once

#include "row_kernels.h"
#include "team.h"

namespace baton {

// Bytes of activations that stay in a core's cache while all panels pass by, and the most rows
// that these may be.
constexpr int kRowsBytes = 1024 * 1024;
constexpr int kMaxRows = 768;
// Rows of one call of the product kernel.
constexpr int kBlockRows = 2 * kTileRows;
// Chunks of k for which a panel stays in the first-level cache while many rows pass by.
constexpr int kSlabChunks = 8;

constexpr size_t kPanelFloats = static_cast<size_t>(kMaxRows) * kPanelColumns;

// Results of `num_rows` rows (at most kBlockRows) from `first_row` on, for one panel or a group of
// them from `first_panel` on, kPanelFloats apart.
struct Results {
    const float* values;
    int first_row;
    int num_rows;
    int first_panel;
};

// The results of the group's first panel.
static inline Block block_of(const Results& results, const Matrix& matrix) {
    const int column = results.first_panel * kPanelColumns, left = matrix.num_columns - column;
    return {results.values, results.num_rows, left < kPanelColumns ? left : kPanelColumns,
            matrix.bias ? matrix.bias + column : nullptr};
}

// How many parts to divide `num_rows` rows into, and the rows of each but the last.
struct RowParts {
    RowParts(int num_rows, int num_chunks) {
        const int fitting = kRowsBytes / (num_chunks * kChunkBytes);
        const int wanted = fitting < kBlockRows ? kBlockRows : fitting < 512 ? fitting : 512;
        const int nearest = (num_rows + wanted / 2) / wanted, divisor = nearest ? nearest : 1;
        rows = ((num_rows + divisor - 1) / divisor + kBlockRows - 1) / kBlockRows * kBlockRows;
        count = rows ? (num_rows + rows - 1) / rows : 0;
    }
    int count;
    int rows;  // at most kMaxRows
};

// Rows (the first of a tile and those that follow, at most kMaxRows) times one panel, to `out`
// [num_rows][32]. `finish(row, count)` is called as soon as these rows are complete: what it stores
// then leaves for memory while the next rows are multiplied.
template <class Finish>
void panel_product(const RowKernels& kernels, Dtype dtype, const Matrix& matrix, int panel,
                   const uint8_t* rows, int num_rows, float* out, const Finish& finish) {
    const size_t stride = static_cast<size_t>(matrix.num_chunks) * kTileBytes;
    const uint8_t* weights = panel_at(matrix, panel);
    const bool is_short = num_rows <= 2 * kBlockRows;
    const int slab = is_short ? matrix.num_chunks : kSlabChunks;
    // Panels follow each other in memory: few rows fetch a chunk ahead, many share the next slab.
    const int lines = kPanelStepBytes / 64, blocks = (num_rows + kBlockRows - 1) / kBlockRows;
    const int shared_lines = (lines + blocks - 1) / blocks;
    for (int chunk = 0; chunk < matrix.num_chunks; chunk += slab) {
        const int left = matrix.num_chunks - chunk, count = left < slab ? left : slab;
        const uint8_t* first = weights + static_cast<size_t>(chunk) * kPanelStepBytes;
        for (int row = 0; row < num_rows; row += kBlockRows) {
            const int rows_left = num_rows - row;
            const int num_block_rows = rows_left < kBlockRows ? rows_left : kBlockRows;
            const uint8_t* ahead =
                is_short ? first + static_cast<size_t>(kernels.ahead_chunks) * kPanelStepBytes
                         : first + static_cast<size_t>(count) *
                                       (kPanelStepBytes + row / kBlockRows * shared_lines * 64);
            const int ahead_lines = is_short ? (row == 0 ? lines : 0) : shared_lines;
            kernels.product[dtype]({rows + row / kTileRows * stride + chunk * kTileBytes, stride,
                                    num_block_rows, first, count, chunk > 0, ahead, ahead_lines,
                                    out + row * kPanelColumns});
            if (left <= slab) finish(row, num_block_rows);
        }
    }
}

// `finish(results)` gets the results of each `group` of panels, in the thread that computed them.
// `scratch` is this thread's, [group * kPanelFloats].
template <class Finish>
void multiply(Team& team, const RowKernels& kernels, Dtype dtype, const Matrix& matrix,
              const uint8_t* rows, int num_rows, int group, float* scratch, const Finish& finish) {
    const int panels = num_panels(matrix), groups = (panels + group - 1) / group;
    const RowParts parts(num_rows, matrix.num_chunks);
    const size_t tile_stride = static_cast<size_t>(matrix.num_chunks) * kTileBytes;
    team.share(parts.count * groups, [&](int unit) {
        const int first_row = unit / groups * parts.rows, left = num_rows - first_row;
        const int count = left < parts.rows ? left : parts.rows;
        const int first_panel = unit % groups * group;
        const int last = (first_panel + group < panels ? first_panel + group : panels) - 1;
        const uint8_t* first = rows + first_row / kTileRows * tile_stride;
        for (int p = first_panel; p < last; ++p)
            panel_product(kernels, dtype, matrix, p, first, count,
                          scratch + (p - first_panel) * kPanelFloats, [](int, int) {});
        panel_product(kernels, dtype, matrix, last, first, count,
                      scratch + (last - first_panel) * kPanelFloats, [&](int row, int num_done) {
                          finish(Results{scratch + row * kPanelColumns, first_row + row, num_done,
                                         first_panel});
                      });
    });
}

// silu(gate) * up, tiled in rows of `out_chunks`; panels of `gate_up` are 16 columns of each.
inline void multiply_gated(Team& team, const RowKernels& kernels, Dtype dtype,
                           const Matrix& gate_up, const uint8_t* rows, int num_rows, int out_chunks,
                           uint8_t* out, float* scratch) {
    const size_t stride = static_cast<size_t>(out_chunks) * kTileBytes;
    multiply(team, kernels, dtype, gate_up, rows, num_rows, 1, scratch,
             [&](const Results& results) {
                 const int byte = results.first_panel * kHalfColumns * value_bytes(dtype);
                 const size_t start =
                     tiled_offset(results.first_row, byte / kChunkBytes, out_chunks);
                 kernels.silu_block[dtype](block_of(results, gate_up),
                                           out + start + byte % kChunkBytes, stride);
             });
}

}  // namespace baton
