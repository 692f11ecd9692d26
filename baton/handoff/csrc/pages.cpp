// Copies pages and takes their CRC-32 in one pass: each byte is loaded once, and what was loaded is
// stored and folded into the checksum. Stores go past the cache: nobody here reads the pages soon.
//
// Folding by carry-less multiplication (Gopal et al., "Fast CRC Computation Using PCLMULQDQ"): the
// 256 bytes that are left have the same remainder as all pages; the caller takes their CRC.
#include <cstddef>
#include <cstdint>

#define BATON_EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
#include <immintrin.h>
#define BATON_FOLDS __attribute__((target("avx512f,vpclmulqdq")))

namespace {

constexpr size_t kStride = 256;
// x^(2048+32) and x^(2048-32) modulo the polynomial, with their bits in the CRC's order.
constexpr int64_t kFoldLow = 0x11542778a, kFoldHigh = 0x1322d1430;

BATON_FOLDS inline __m512i fold(__m512i sum, __m512i data, __m512i by) {
    const __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(sum, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, data, 0x96);  // low ^ high ^ data
}

}  // namespace

BATON_EXPORT int baton_can_copy_pages() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

// `num_pages` pages of `page_bytes`, one or more of both, from `source + source_starts[i]` to
// `target + target_starts[i]`; `crc` is xored to the first four bytes before they are folded. 0, and
// nothing was done, unless all targets begin at a multiple of 64 and a page has whole strides.
BATON_EXPORT BATON_FOLDS int baton_copy_pages(uint8_t* target, const uint64_t* target_starts,
                                              const uint8_t* source, const uint64_t* source_starts,
                                              size_t num_pages, size_t page_bytes, uint32_t crc,
                                              uint8_t* left) {
    uintptr_t places = 0;
    for (size_t page = 0; page < num_pages; ++page)
        places |= reinterpret_cast<uintptr_t>(target + target_starts[page]);
    if (places % 64 || page_bytes % kStride) return 0;

    const __m512i by = _mm512_set4_epi64(kFoldHigh, kFoldLow, kFoldHigh, kFoldLow);
    // Before any byte came: what the first stride's fold turns into its own xor with `crc`.
    __m512i sums[4] = {};
    bool is_first = true;
    for (size_t page = 0; page < num_pages; ++page) {
        const uint8_t* from = source + source_starts[page];
        uint8_t* to = target + target_starts[page];
        for (size_t place = 0; place < page_bytes; place += kStride) {
            __m512i data[4];
            for (int i = 0; i < 4; ++i) data[i] = _mm512_loadu_si512(from + place + 64 * i);
            for (int i = 0; i < 4; ++i)
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to + place + 64 * i), data[i]);
            for (int i = 0; i < 4; ++i) sums[i] = fold(sums[i], data[i], by);
            if (is_first) {
                sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(crc)));
                is_first = false;
            }
        }
    }
    _mm_sfence();
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(left + 64 * i, sums[i]);
    return 1;
}

#else

BATON_EXPORT int baton_can_copy_pages() { return 0; }

BATON_EXPORT int baton_copy_pages(uint8_t*, const uint64_t*, const uint8_t*, const uint64_t*,
                                  size_t, size_t, uint32_t, uint8_t*) {
    return 0;
}

#endif
