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

// A quarter of the lines that are to be fetched during one chunk. The tile registers have room for
// two or three chunks only: without this, memory would idle. Lines are 0, 32 (of one chunk each)
// or any number.
constexpr int kChunkLines = kPanelStepBytes / 64;
template <int Lines>
inline void fetch(const uint8_t* ahead, int lines, int quarter) {
    if (Lines == 0) return;
    if (Lines == kChunkLines) {
        for (int i = 0; i < kChunkLines / 4; ++i)
            _mm_prefetch(ahead + (quarter * (kChunkLines / 4) + i) * 64, _MM_HINT_T0);
        return;
    }
    for (int i = quarter; i < lines; i += 4) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
}

// Tiles: 0..3 totals, 4 and 5 rows, 6 and 7 the halves of a panel.
template <int Lines>
void one_tile(const Product& p) {
    const uint8_t *rows = p.rows, *panel = p.panel, *ahead = p.ahead;
    if (p.accumulate) {
        _tile_loadd(0, p.out, kOutStride);
        _tile_loadd(1, p.out + kHalfColumns, kOutStride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int c = 0; c < p.num_chunks; ++c) {
        for (int quarter = 0; quarter < 4; ++quarter) fetch<Lines>(ahead, p.ahead_lines, quarter);
        _tile_loadd(4, rows, kChunkBytes);
        _tile_loadd(6, panel, 64);
        _tile_loadd(7, panel + kTileBytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        rows += kTileBytes;
        panel += kPanelStepBytes;
        ahead += p.ahead_lines * 64;
    }
    _tile_stored(0, p.out, kOutStride);
    _tile_stored(1, p.out + kHalfColumns, kOutStride);
}

template <int Lines>
void two_tiles(const Product& p) {
    const uint8_t *upper = p.rows, *lower = p.rows + p.tile_stride;
    const uint8_t *panel = p.panel, *ahead = p.ahead;
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
        fetch<Lines>(ahead, p.ahead_lines, 0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kTileBytes, 64);
        fetch<Lines>(ahead, p.ahead_lines, 1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower, kChunkBytes);
        fetch<Lines>(ahead, p.ahead_lines, 2);
        _tile_dpbf16ps(2, 5, 6);
        fetch<Lines>(ahead, p.ahead_lines, 3);
        _tile_dpbf16ps(3, 5, 7);
        upper += kTileBytes;
        lower += kTileBytes;
        panel += kPanelStepBytes;
        ahead += p.ahead_lines * 64;
    }
    _tile_stored(0, p.out, kOutStride);
    _tile_stored(1, p.out + kHalfColumns, kOutStride);
    _tile_stored(2, below, kOutStride);
    _tile_stored(3, below + kHalfColumns, kOutStride);
}

template <int Lines>
void product(const Product& p) {
    p.num_rows <= kTileRows ? one_tile<Lines>(p) : two_tiles<Lines>(p);
}

void product(const Product& p) {
    if (p.ahead_lines == 0) return product<0>(p);
    p.ahead_lines == kChunkLines ? product<kChunkLines>(p) : product<-1>(p);
}

RowKernels make_table() {
    RowKernels table = row_kernels_avx512();
    table.begin = begin;
    table.end = end;
    table.ahead_chunks = 1;
    table.product[kBfloat16] = product;
    return table;
}

}  // namespace

const RowKernels& row_kernels_amx() {
    static const RowKernels table = make_table();
    return table;
}

}  // namespace baton
