// What this machine can run, found once by cpuid. On other than x86-64 everything is portable.
#include "isa.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace baton {
namespace {

#if defined(__x86_64__)

[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

[[maybe_unused]] bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

// Tiles are state that a process must ask for (Linux 5.16 and later); asking twice is harmless.
[[maybe_unused]] bool has_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
    unsigned eax, ebx, ecx, edx;
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if (!(edx & amx_bf16) || !(edx & amx_tile)) return false;
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

#endif

Isa detect() {
    Isa best = kPortable;
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(BATON_WITH_AVX2)
    if (has_avx2()) best = kAvx2;
#endif
#if defined(BATON_WITH_AVX512)
    if (best == kAvx2 && has_avx512()) best = kAvx512;
#endif
#if defined(BATON_WITH_AMX)
    if (best == kAvx512 && has_amx()) best = kAmx;
#endif
#endif
    return best;
}

// No more than BATON_CPU_ISA names; native.py refuses other names.
Isa allowed(Isa best) {
    const char* named = std::getenv("BATON_CPU_ISA");
    const char* const names[] = {"portable", "avx2", "avx512", "amx"};
    for (int isa = kPortable; named && isa < best; ++isa)
        if (!std::strcmp(named, names[isa])) return static_cast<Isa>(isa);
    return best;
}

}  // namespace

Isa best_isa() {
    static const Isa best = allowed(detect());
    return best;
}

}  // namespace baton

// An Isa as an integer; native.py names them.
BATON_EXPORT int baton_best_isa() { return baton::best_isa(); }
