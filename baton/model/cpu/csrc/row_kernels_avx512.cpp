// The kernels in AVX-512, with its bfloat16 dot product.
#define BATON_BLOCK_ROWS 8
#include "row_kernels_body.h"

const baton::RowKernels& baton::row_kernels_avx512() { return kTable; }
