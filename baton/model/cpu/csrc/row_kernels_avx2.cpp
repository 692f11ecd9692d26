// The kernels in AVX2 with FMA.
#define BATON_BLOCK_ROWS 2
#include "row_kernels_body.h"

const baton::RowKernels& baton::row_kernels_avx2() { return kTable; }
