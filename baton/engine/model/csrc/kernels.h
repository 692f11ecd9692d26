// The table of kernels for the instruction set that the including unit is compiled for.
#pragma once

#include "chunk_kernel.h"
#include "part_kernel.h"

namespace baton {
namespace {

template <class T>
constexpr Kernels kernels_of() {
    return {PartKernel<T>::attend, PartKernel<T>::merge, ChunkKernel<T>::attend};
}

}  // namespace
}  // namespace baton
