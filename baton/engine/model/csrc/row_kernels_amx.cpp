// bfloat16 products in AMX tiles; all else as with AVX-512. Tiles always have 16 rows, those that
// are not wanted are computed along: reading the panel takes longer than that.
#include <immintrin.h>

#include "row_kernels.h"

namespace baton {
namespace {

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

// Not _tile_loadconfig: that of GCC 12 lets the compiler drop stores to all but its first bytes.
void begin() { asm volatile("ldtilecfg %0" ::"m"(kConfig)); }
void end() { _tile_release(); }

constexpr int kOutStride = kPanelColumns * sizeof(float);

// Part `index` of `kParts` of the next step of a panel. Weights come from memory, and so few steps
// fit into the tile registers ahead of time that it would idle without this.
constexpr int kParts = 4;
template <bool IsCold>
inline void prefetch(const uint8_t* panel, int index) {
    constexpr int bytes = kPanelStepBytes / kParts;
    if (!IsCold) return;
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch(panel + kPanelStepBytes + index * bytes + i, _MM_HINT_T0);
}

// Tiles: 0..3 totals, 4 and 5 rows, 6 and 7 the halves of a panel.
template <bool IsCold>
void one_tile(const Product& p) {
    const uint8_t *rows = p.rows, *panel = p.panel;
    if (p.accumulate) {
        _tile_loadd(0, p.out, kOutStride);
        _tile_loadd(1, p.out + kHalfColumns, kOutStride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int c = 0; c < p.num_chunks; ++c, rows += kTileBytes, panel += kPanelStepBytes) {
        for (int part = 0; part < kParts; ++part) prefetch<IsCold>(panel, part);
        _tile_loadd(4, rows, kChunkBytes);
        _tile_loadd(6, panel, 64);
        _tile_loadd(7, panel + kTileBytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, p.out, kOutStride);
    _tile_stored(1, p.out + kHalfColumns, kOutStride);
}

template <bool IsCold>
void two_tiles(const Product& p) {
    const uint8_t *upper = p.rows, *lower = p.rows + p.tile_stride, *panel = p.panel;
    float* below = p.out + kTileRows * kPanelColumns;
    if (p.accumulate) {
        _tile_loadd(0, p.out, kOutStride);
        _tile_loadd(1, p.out + kHalfColumns, kOutStride);
        _tile_loadd(2, below, kOutStride);
        _tile_loadd(3, below + kHalfColumns, kOutStride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int c = 0; c < p.num_chunks; ++c) {
        _tile_loadd(6, panel, 64);
        _tile_loadd(4, upper, kChunkBytes);
        prefetch<IsCold>(panel, 0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kTileBytes, 64);
        prefetch<IsCold>(panel, 1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower, kChunkBytes);
        prefetch<IsCold>(panel, 2);
        _tile_dpbf16ps(2, 5, 6);
        prefetch<IsCold>(panel, 3);
        _tile_dpbf16ps(3, 5, 7);
        upper += kTileBytes;
        lower += kTileBytes;
        panel += kPanelStepBytes;
    }
    _tile_stored(0, p.out, kOutStride);
    _tile_stored(1, p.out + kHalfColumns, kOutStride);
    _tile_stored(2, below, kOutStride);
    _tile_stored(3, below + kHalfColumns, kOutStride);
}

void product(const Product& p) {
    if (p.num_rows <= kTileRows) return p.is_cold ? one_tile<true>(p) : one_tile<false>(p);
    p.is_cold ? two_tiles<true>(p) : two_tiles<false>(p);
}

RowKernels make_table() {
    RowKernels table = row_kernels_avx512();
    table.begin = begin;
    table.end = end;
    table.product[kBfloat16] = product;
    return table;
}

}  // namespace

const RowKernels& row_kernels_amx() {
    static const RowKernels table = make_table();
    return table;
}

}  // namespace baton
