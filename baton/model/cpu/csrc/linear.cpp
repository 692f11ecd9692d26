// Packing of weights, and what modules of any model are made of: linear layer, gated MLP, RMSNorm.
#include <cstring>

#include "matmul.h"

namespace baton {
namespace {

// One half of a panel: 16 rows of the weight, of which `num_rows` exist, of `size` bytes.
void pack_rows(const RowKernels& kernels, const uint8_t* rows, size_t size, int num_rows,
               int num_chunks, uint8_t* half) {
    for (int chunk = 0; chunk < num_chunks; ++chunk, half += kPanelStepBytes) {
        const size_t begin = static_cast<size_t>(chunk) * kChunkBytes, left = size - begin;
        if (num_rows == kHalfColumns && left >= kChunkBytes) {
            kernels.pack_half(rows + begin, size, half);
            continue;
        }
        uint8_t padded[kTileBytes] = {};
        for (int row = 0; row < num_rows; ++row)
            std::memcpy(padded + row * kChunkBytes, rows + row * size + begin,
                        left < kChunkBytes ? left : kChunkBytes);
        kernels.pack_half(padded, kChunkBytes, half);
    }
}

// A call's operands; rows are row-major values of the dtype.
struct Operands {
    const RowKernels& kernels;
    Dtype dtype;
    const void* rows;
    int num_rows;
    int size;  // values of a row
    void* out;
    int num_threads;

    const uint8_t* row(int index) const {
        return static_cast<const uint8_t*>(rows) +
               static_cast<size_t>(index) * size * value_bytes(dtype);
    }
};

size_t tiled_bytes(int num_rows, const Matrix& matrix) {
    const size_t tiles = (num_rows + kTileRows - 1) / kTileRows + 1;  // products take two at a time
    return tiles * matrix.num_chunks * kTileBytes;
}

void tile_rows(Team& team, const Operands& call, const Matrix& matrix, uint8_t* tiled) {
    team.share(call.num_rows, [&](int row) {
        call.kernels.tile_row[call.dtype](call.row(row), call.size,
                                          tiled + tiled_offset(row, 0, matrix.num_chunks));
    });
}

// Tiled rows times the matrix, to row-major rows of the call's output.
void multiply_out(Team& team, const Operands& call, const Matrix& matrix, const uint8_t* tiled,
                  float* scratch) {
    const int bytes = value_bytes(call.dtype);
    const size_t stride = static_cast<size_t>(matrix.num_columns) * bytes;
    multiply(team, call.kernels, call.dtype, matrix, tiled, call.num_rows, 1, scratch,
             [&](const Results& results) {
                 uint8_t* out = static_cast<uint8_t*>(call.out) + results.first_row * stride +
                                static_cast<size_t>(results.first_panel) * kPanelColumns * bytes;
                 call.kernels.store_block[call.dtype](block_of(results, matrix), out, stride);
             });
}

// `work(team, scratch)` by every thread of a region.
template <class Work>
void run(const Operands& call, const Work& work) {
    Team team(call.num_threads);
#pragma omp parallel num_threads(call.num_threads)
    {
        static thread_local Arena scratch;
        float* memory = static_cast<float*>(scratch.reserve(kPanelFloats * sizeof(float)));
        team.enter();
        call.kernels.begin();
        work(team, memory);
        call.kernels.end();
    }
}

uint8_t* reserve(Arena& arena, size_t bytes) {
    return static_cast<uint8_t*>(arena.reserve(static_cast<int64_t>(bytes)));
}

}  // namespace
}  // namespace baton

using namespace baton;

// Bytes of a packed matrix of `num_columns` (weight rows; whole panels) and `k`.
BATON_EXPORT int64_t baton_packed_bytes(int dtype, int num_columns, int k) {
    const int64_t panels = (num_columns + kPanelColumns - 1) / kPanelColumns;
    return panels * num_chunks(static_cast<Dtype>(dtype), k) * kPanelStepBytes;
}

// Packs `weight` [num_rows][k], values of the dtype, into halves first_half, first_half + step, ...
// of the panels at `out`: step 1 for one matrix, 2 to interleave the halves of two.
BATON_EXPORT void baton_pack(int dtype, const void* weight, int num_rows, int k, uint8_t* out,
                             int first_half, int step, int num_threads) {
    const RowKernels& kernels = row_kernels_for(best_isa());
    const Dtype kind = static_cast<Dtype>(dtype);
    const int chunks = num_chunks(kind, k), halves = (num_rows + kHalfColumns - 1) / kHalfColumns;
    const size_t row_bytes = static_cast<size_t>(k) * value_bytes(kind);
    const uint8_t* rows = static_cast<const uint8_t*>(weight);
#pragma omp parallel for num_threads(num_threads)
    for (int i = 0; i < halves; ++i) {
        const int half = first_half + i * step, left = num_rows - i * kHalfColumns;
        uint8_t* panel = out + static_cast<size_t>(half / 2) * chunks * kPanelStepBytes;
        pack_rows(kernels, rows + static_cast<size_t>(i) * kHalfColumns * row_bytes, row_bytes,
                  left < kHalfColumns ? left : kHalfColumns, chunks,
                  panel + half % 2 * kTileBytes);
    }
}

// out [num_rows][num_columns] = rows [num_rows][size] times the matrix, plus its bias.
BATON_EXPORT void baton_linear(int isa, int dtype, const Matrix* matrix, const void* rows,
                               int num_rows, int size, void* out, int num_threads) {
    const Operands call{row_kernels_for(static_cast<Isa>(isa)), static_cast<Dtype>(dtype), rows,
                        num_rows, size, out, num_threads};
    static thread_local Arena arena;
    uint8_t* tiled = reserve(arena, tiled_bytes(num_rows, *matrix));
    run(call, [&](Team& team, float* scratch) {
        tile_rows(team, call, *matrix, tiled);
        multiply_out(team, call, *matrix, tiled, scratch);
    });
}

// out [num_rows][size] = down(silu(gate(rows)) * up(rows)); the panels of `gate_up` interleave the
// halves of gate and up.
BATON_EXPORT void baton_gated_mlp(int isa, int dtype, const Matrix* gate_up, const Matrix* down,
                                  const void* rows, int num_rows, int size, void* out,
                                  int num_threads) {
    const Operands call{row_kernels_for(static_cast<Isa>(isa)), static_cast<Dtype>(dtype), rows,
                        num_rows, size, out, num_threads};
    static thread_local Arena arena, inner_arena;
    uint8_t* tiled = reserve(arena, tiled_bytes(num_rows, *gate_up));
    uint8_t* inner = reserve(inner_arena, tiled_bytes(num_rows, *down));
    run(call, [&](Team& team, float* scratch) {
        tile_rows(team, call, *gate_up, tiled);
        multiply_gated(team, call.kernels, call.dtype, *gate_up, tiled, num_rows,
                       down->num_chunks, inner, scratch);
        multiply_out(team, call, *down, inner, scratch);
    });
}

// out = rows / rms(rows) * weight, by rows of `size` values; the weight is float32.
BATON_EXPORT void baton_rms_norm(int isa, int dtype, const void* rows, const float* weight,
                                 int num_rows, int size, float eps, void* out, int num_threads) {
    const Operands call{row_kernels_for(static_cast<Isa>(isa)), static_cast<Dtype>(dtype), rows,
                        num_rows, size, out, num_threads};
    const int64_t serial_values = 32 * 1024;  // less is not worth waking other threads
    const bool is_small = static_cast<int64_t>(num_rows) * size < serial_values;
    uint8_t* to = static_cast<uint8_t*>(out);
#pragma omp parallel for num_threads(is_small ? 1 : num_threads)
    for (int row = 0; row < num_rows; ++row)
        call.kernels.norm_rounded[dtype](call.row(row), weight, size, eps,
                                         to + (call.row(row) - call.row(0)));
}
