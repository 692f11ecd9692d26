// Kernels for AVX512 with BF16: sixteen floats at a time, products of bfloat16 by one instruction.
#include "kernels.h"

namespace baton {
const Kernels kAvx512Kernels[2] = {kernels_of<float>(), kernels_of<Bf16>()};
}
