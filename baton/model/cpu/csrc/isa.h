// Which instruction sets the kernels may use. A unit whose name ends in _avx2, _avx512 or _amx is
// compiled for that set (build_native.py) and must keep all its code in an anonymous namespace: an
// inline function with a public name could be taken, by the linker, for the one of a lesser
// machine.
#pragma once

#define BATON_EXPORT extern "C" __attribute__((visibility("default")))

namespace baton {

// Ordered: a machine that has one has all before it.
enum Isa {
    kPortable = 0,
    kAvx2 = 1,    // with FMA
    kAvx512 = 2,  // F, BW, DQ, VL and BF16
    kAmx = 3,     // bfloat16 tiles, on top of kAvx512
};

// The best set that this machine, its kernel and this build have, and BATON_CPU_ISA allows. Asks the
// kernel once for tiles.
Isa best_isa();

}  // namespace baton
