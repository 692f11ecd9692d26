// The product of tiled activations and a packed matrix, by the threads of a team.
#pragma once

#include "row_kernels.h"
#include "team.h"

namespace baton {

// Rows whose activations stay in a core's cache while all panels pass by.
constexpr int kRowsAtOnce = 256;
// Chunks of k for which a panel stays in the first-level cache while many rows pass by.
constexpr int kChunksAtOnce = 8;
// Consecutive panels that are one unit of work, at most: a head of 512 values.
constexpr int kMaxGroup = 16;

// Where the results of one unit of work lie: rows [first_row, first_row + num_rows) of panels from
// `first_panel` on, each panel [kRowsAtOnce][32].
struct Results {
    const float* values;
    int first_row;
    int num_rows;
    int first_panel;
};

constexpr size_t kPanelFloats = static_cast<size_t>(kRowsAtOnce) * kPanelColumns;

// The results of the unit's first panel.
inline Block block_of(const Results& results, const Matrix& matrix) {
    const int column = results.first_panel * kPanelColumns, left = matrix.num_columns - column;
    return {results.values, results.num_rows, left < kPanelColumns ? left : kPanelColumns,
            matrix.bias ? matrix.bias + column : nullptr};
}

// Rows [first_row, first_row + num_rows) times one panel, to `out` [num_rows][32].
inline void panel_product(const RowKernels& kernels, Dtype dtype, const Matrix& matrix, int panel,
                          const uint8_t* rows, int num_rows, float* out) {
    const size_t stride = static_cast<size_t>(matrix.num_chunks) * kTileBytes;
    const uint8_t* weights = panel_at(matrix, panel);
    const int slab = num_rows > 2 * kPanelColumns ? kChunksAtOnce : matrix.num_chunks;
    for (int chunk = 0; chunk < matrix.num_chunks; chunk += slab) {
        const int left = matrix.num_chunks - chunk;
        for (int row = 0; row < num_rows; row += 2 * kTileRows) {
            const int count = num_rows - row < 2 * kTileRows ? num_rows - row : 2 * kTileRows;
            kernels.product[dtype]({rows + row / kTileRows * stride + chunk * kTileBytes, stride,
                                    count, weights + static_cast<size_t>(chunk) * kPanelStepBytes,
                                    left < slab ? left : slab, chunk > 0, row == 0,
                                    out + row * kPanelColumns});
        }
    }
}

// `finish(results)` gets each `group` of panels for up to kRowsAtOnce rows, in the thread that
// computed them. `scratch` is this thread's, [group * kPanelFloats].
template <class Finish>
void multiply(Team& team, const RowKernels& kernels, Dtype dtype, const Matrix& matrix,
              const uint8_t* rows, int num_rows, int group, float* scratch, const Finish& finish) {
    const int panels = num_panels(matrix), groups = (panels + group - 1) / group;
    const int blocks = (num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const size_t tile_stride = static_cast<size_t>(matrix.num_chunks) * kTileBytes;
    team.share(blocks * groups, [&](int unit) {
        const int first_row = unit / groups * kRowsAtOnce, left = num_rows - first_row;
        const Results results{scratch, first_row, left < kRowsAtOnce ? left : kRowsAtOnce,
                              unit % groups * group};
        const uint8_t* first = rows + first_row / kTileRows * tile_stride;
        for (int p = 0; p < group && results.first_panel + p < panels; ++p)
            panel_product(kernels, dtype, matrix, results.first_panel + p, first, results.num_rows,
                          scratch + p * kPanelFloats);
        finish(results);
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
