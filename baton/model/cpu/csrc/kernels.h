// The table of kernels for the instruction set that the including unit is compiled for.
#pragma once

#include "chunk_kernel.h"
#include "part_kernel.h"
#if defined(__AMX_BF16__)
#include "part_tiles.h"
#endif

namespace baton {
namespace {

template <class T>
constexpr Kernels kernels_of() {
#if defined(__AMX_BF16__)
    if (std::is_same_v<T, Bf16>) return {PartTiles::attend, merge_parts<T>, ChunkKernel<T>::attend};
#endif
    return {PartKernel<T>::attend, merge_parts<T>, ChunkKernel<T>::attend};
}

}  // namespace
}  // namespace baton
