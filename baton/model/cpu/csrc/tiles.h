// AMX tiles: eight registers of 16 rows of 64 bytes. In assembler, because the compilers' own
// intrinsics take no template parameters and some do not say that a load reads memory.
#pragma once

#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>

namespace baton {
namespace {

// All tiles are whole while this lives; other code of the thread may configure its own afterwards.
class TileUse {
   public:
    TileUse() {
        alignas(64) struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } layout;
        asm volatile("ldtilecfg %0" ::"m"(layout));
    }
    ~TileUse() { asm volatile("tilerelease"); }
};

template <int kTile>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

template <int kTile>
inline void load_tile(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(kTile)
                 : "memory");
}

template <int kTile>
inline void store_tile(void* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" ::"r"(to), "r"(stride_bytes), "i"(kTile)
                 : "memory");
}

// sums[m][n] += left[m][2k] * right[k][2n] + left[m][2k + 1] * right[k][2n + 1]
template <int kSums, int kLeft, int kRight>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}

}  // namespace
}  // namespace baton
#else
namespace baton {
namespace {
struct TileUse {};
}  // namespace
}  // namespace baton
#endif
