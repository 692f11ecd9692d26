// Kernels for AVX2 with FMA: eight floats at a time, bfloat16 widened.
#include "kernels.h"

namespace baton {
const Kernels kAvx2Kernels[2] = {kernels_of<float>(), kernels_of<Bf16>()};
}
