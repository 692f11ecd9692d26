// Kernels for AMX: as for AVX512, but the matrix products of bfloat16 chunks go through tiles.
#include "kernels.h"

namespace baton {
const Kernels kAmxKernels[2] = {kernels_of<float>(), kernels_of<Bf16>()};
}
