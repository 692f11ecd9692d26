// The kernels for any machine, and the choice between all of them.
#define BATON_BLOCK_ROWS 2
#include "row_kernels_body.h"

const baton::RowKernels& baton::row_kernels_portable() { return kTable; }

const baton::RowKernels& baton::row_kernels_for(Isa isa) {
    if (isa > best_isa()) isa = best_isa();
    switch (isa) {
#if defined(BATON_WITH_AMX)
        case kAmx:
            return row_kernels_amx();
#endif
#if defined(BATON_WITH_AVX512)
        case kAvx512:
            return row_kernels_avx512();
#endif
#if defined(BATON_WITH_AVX2)
        case kAvx2:
            return row_kernels_avx2();
#endif
        default:
            return row_kernels_portable();
    }
}
