// Kernels for any machine: four floats at a time.
#include "kernels.h"

namespace baton {
const Kernels kPortableKernels[2] = {kernels_of<float>(), kernels_of<Bf16>()};
}
