// Bodies of the kernels, in vectors of 16 values that the compiler maps to what the unit is
// compiled for. Included once by each of row_kernels_*.cpp, after it has defined BATON_BLOCK_ROWS.
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstring>

#include "row_kernels.h"

namespace baton {
namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <class Vector>
inline Vector load(const void* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Vector>
inline void store(const Vector& value, void* to) {
    std::memcpy(to, &value, sizeof value);
}

// To subtract zero changes no bit, so the compiler leaves it out; to add it would make a 0 of -0.
inline Floats all(float value) { return value - Floats{}; }
inline Words all(uint32_t value) { return Words{} + value; }
inline float slice(const uint8_t* from) { return load<float>(from); }

inline float sum(const Floats& values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)values);
#else
    float lanes[kLanes];
    store(values, lanes);
    for (int width = kLanes / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

// Values of a dtype as float32 and back, 16 at a time.
template <Dtype D>
inline Floats widen16(const void* from) {
    if (D == kFloat32) return load<Floats>(from);
    return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

// Rounds to nearest even; infinities stay, a NaN stays one (its payload may change).
template <Dtype D>
inline void narrow16(const Floats& values, void* to) {
    if (D == kFloat32) return store(values, to);
#if defined(__AVX512BF16__)
    store(_mm512_cvtneps_pbh((__m512)values), to);
#else
    const Words bits = (Words)values;
    Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Ints is_nan = values != values;
    rounded = is_nan ? all(0x7fc0u) : rounded;
    store(__builtin_convertvector(rounded, Halves), to);
#endif
}

template <Dtype D>
inline void multiply_add(Floats& total, const Floats& weights, float pair) {
    if (D == kFloat32) {
        total += weights * pair;
        return;
    }
    uint32_t bits;
    std::memcpy(&bits, &pair, sizeof bits);
    total += (Floats)((Words)weights << 16) * (Floats)all(bits << 16);
    total += (Floats)((Words)weights & 0xffff0000u) * (Floats)all(bits & 0xffff0000u);
}

#if defined(__AVX512BF16__)
template <>
inline void multiply_add<kBfloat16>(Floats& total, const Floats& weights, float pair) {
    total = (Floats)_mm512_dpbf16_ps((__m512)total, (__m512bh)weights, (__m512bh)all(pair));
}
#endif

// `Rows` rows of one tile times the panel. Meanwhile `lines` cache lines for each chunk are fetched
// of what will be read next: a processor's own prefetching follows a panel too late.
template <Dtype D, int Rows>
void block_product(const Product& p, const uint8_t* rows, int lines, float* out) {
    const uint8_t *panel = p.panel, *ahead = p.ahead;
    Floats totals[Rows][2];
    for (int r = 0; r < Rows; ++r)
        for (int h = 0; h < 2; ++h)
            totals[r][h] =
                p.accumulate ? load<Floats>(out + r * kPanelColumns + h * kHalfColumns) : Floats{};
    for (int c = 0; c < p.num_chunks; ++c, rows += kTileBytes, panel += kPanelStepBytes) {
        for (int i = 0; i < lines; ++i, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        for (int s = 0; s < kChunkBytes; s += 4) {
            const Floats left = load<Floats>(panel + s * kHalfColumns);
            const Floats right = load<Floats>(panel + kTileBytes + s * kHalfColumns);
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                const float pair = slice(rows + r * kChunkBytes + s);
                multiply_add<D>(totals[r][0], left, pair);
                multiply_add<D>(totals[r][1], right, pair);
            }
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int h = 0; h < 2; ++h) store(totals[r][h], out + r * kPanelColumns + h * kHalfColumns);
}

template <Dtype D>
void product(const Product& p) {
    constexpr int block = BATON_BLOCK_ROWS;
    int lines = p.ahead_lines;  // the first rows fetch for all
    for (int row = 0; row < p.num_rows; lines = 0) {
        const uint8_t* rows =
            p.rows + row / kTileRows * p.tile_stride + row % kTileRows * kChunkBytes;
        float* out = p.out + row * kPanelColumns;
        if (p.num_rows - row >= block) {
            block_product<D, block>(p, rows, lines, out);
            row += block;
        } else if (block > 2 && p.num_rows - row >= 2) {
            block_product<D, 2>(p, rows, lines, out);
            row += 2;
        } else {
            block_product<D, 1>(p, rows, lines, out);
            row += 1;
        }
    }
}

// Up to 16 values of a dtype, the rest zeros, and back.
template <Dtype D>
inline Floats widen_some(const void* from, int count) {
    if (count >= kLanes) return widen16<D>(from);
    uint8_t padded[kLanes * 4] = {};
    std::memcpy(padded, from, count * (D == kBfloat16 ? 2 : 4));
    return widen16<D>(padded);
}

template <Dtype D>
inline void narrow_some(const Floats& values, void* to, int count) {
    if (count >= kLanes) return narrow16<D>(values, to);
    uint8_t padded[kLanes * 4];
    narrow16<D>(values, padded);
    std::memcpy(to, padded, count * (D == kBfloat16 ? 2 : 4));
}

inline float inverse_rms(const float* row, int size, float eps) {
    Floats squares{};
    for (int i = 0; i < size; i += kLanes) {
        const Floats values = load<Floats>(row + i);
        squares += values * values;
    }
    return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + eps);
}

template <Dtype D>
void norm_rounded(const void* row, const float* weight, int size, float eps, void* out) {
    constexpr int bytes = D == kBfloat16 ? 2 : 4;
    const uint8_t* from = static_cast<const uint8_t*>(row);
    uint8_t* to = static_cast<uint8_t*>(out);
    Floats squares{};
    for (int i = 0; i < size; i += kLanes) {
        const Floats values = widen_some<D>(from + i * bytes, size - i);
        squares += values * values;
    }
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + eps);
    for (int i = 0; i < size; i += kLanes) {
        uint8_t rounded[kLanes * 4];
        narrow16<D>(widen_some<D>(from + i * bytes, size - i) * scale, rounded);
        const Floats weights = widen_some<kFloat32>(weight + i, size - i);
        narrow_some<D>(widen16<D>(rounded) * weights, to + i * bytes, size - i);
    }
}

// The address of value `i` of a tiled row.
template <Dtype D>
inline uint8_t* tiled_value(uint8_t* row, int i) {
    constexpr int per_chunk = D == kBfloat16 ? 32 : 16, bytes = kChunkBytes / per_chunk;
    return row + static_cast<size_t>(i / per_chunk) * kTileBytes + i % per_chunk * bytes;
}

template <Dtype D>
void norm_row(const float* row, const float* weight, int size, float eps, uint8_t* out) {
    const float scale = inverse_rms(row, size, eps);
    for (int i = 0; i < size; i += kLanes)
        narrow16<D>(load<Floats>(row + i) * scale * load<Floats>(weight + i), tiled_value<D>(out, i));
}

template <Dtype D>
void tile_row(const void* row, int size, uint8_t* out) {
    constexpr int bytes = D == kBfloat16 ? 2 : 4;
    const uint8_t* from = static_cast<const uint8_t*>(row);
    int left = size * bytes;
    for (; left >= kChunkBytes; left -= kChunkBytes, from += kChunkBytes, out += kTileBytes)
        std::memcpy(out, from, kChunkBytes);
    if (left == 0) return;
    std::memset(out, 0, kChunkBytes);
    std::memcpy(out, from, left);
}

// One row of a head of N vectors: biased, normed, rotated (the halves are pairs), stored.
template <Dtype D, int N>
inline void finish_head(const HeadBlock& head, int row) {
    constexpr int bytes = kLanes * (D == kBfloat16 ? 2 : 4), half = N / 2;
    Floats values[N], squares{};
    for (int i = 0; i < N; ++i) {
        const float* panel = head.values + i / 2 * head.panel_stride + row * kPanelColumns;
        values[i] = load<Floats>(panel + i % 2 * kLanes);
        if (head.bias) values[i] += load<Floats>(head.bias + i * kLanes);
        squares += values[i] * values[i];
    }
    if (head.norm) {
        const float mean = sum(squares) / (N * kLanes);
        const float scale = 1.0f / __builtin_sqrtf(mean + head.eps);
        for (int i = 0; i < N; ++i) values[i] *= scale * load<Floats>(head.norm + i * kLanes);
    }
    if (head.cosines) {
        const float* cosines = head.cosines + row * half * kLanes;
        const float* sines = head.sines + row * half * kLanes;
        for (int i = 0; i < half; ++i) {
            const Floats low = values[i], high = values[half + i];
            const Floats cosine = load<Floats>(cosines + i * kLanes);
            const Floats sine = load<Floats>(sines + i * kLanes);
            values[i] = low * cosine - high * sine;
            values[half + i] = high * cosine + low * sine;
        }
    }
    uint8_t* out = static_cast<uint8_t*>(head.outs[row]);
    for (int i = 0; i < N; ++i) narrow16<D>(values[i], out + i * bytes);
}

template <Dtype D, int N>
void finish_heads(const HeadBlock& head) {
    for (int row = 0; row < head.num_rows; ++row) finish_head<D, N>(head, row);
}

template <Dtype D, int... Dims>
void finish_heads_of(const HeadBlock& head, std::integer_sequence<int, Dims...>) {
    ((head.dim == Dims ? finish_heads<D, Dims / kLanes>(head) : void()), ...);
}

template <Dtype D>
void head_block(const HeadBlock& head) {
    finish_heads_of<D>(head, HeadDims());
}

#if defined(__AVX512F__)
// As below, to what bfloat16 can tell (1e-4): half as many instructions, and this is the only
// arithmetic between the two products of an MLP.
inline Floats rough_sigmoid(const Floats& value) {
    const Floats x = value * -1.44269504f;
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    const Floats rest = x - whole;
    Floats power = all(0.0551716648f);  // of 2^rest, minimax
    power = power * rest + 0.242611125f;
    power = power * rest + 0.693260968f;
    power = power * rest + 0.999928057f;
    const Floats exponential = (Floats)_mm512_scalef_ps((__m512)power, (__m512)whole);
    return (Floats)_mm512_rcp14_ps((__m512)(exponential + 1.0f));
}
#endif

// 1 / (1 + exp(-x)); the relative error is below 3e-7.
inline Floats sigmoid(const Floats& value) {
    const Floats least = all(-87.0f), most = all(87.0f);
    Floats x = -value;
    x = x < least ? least : x;
    x = x > most ? most : x;
    // exp(x) by 2^n times a polynomial (Cephes).
    const Floats magic = all(12582912.0f);  // rounds to an integer, kept in the low bits
    const Floats shifted = x * 1.44269504088896341f + magic;
    const Floats n = shifted - magic;
    x -= n * 0.693359375f;
    x -= n * -2.12194440e-4f;
    Floats p = all(1.9875691500e-4f);
    p = p * x + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    p = p * x * x + x + 1.0f;
    return 1.0f / (1.0f + (Floats)((Ints)p + (((Ints)shifted) << 23)));
}

template <Dtype D>
inline Floats silu(const Floats& value) {
#if defined(__AVX512F__)
    if (D == kBfloat16) return value * rough_sigmoid(value);
#endif
    return value * sigmoid(value);
}

template <Dtype D>
void silu_block(const Block& block, uint8_t* out, size_t tile_stride) {
    Floats gate_bias{}, up_bias{};
    if (block.bias) {
        gate_bias = load<Floats>(block.bias);
        up_bias = load<Floats>(block.bias + kHalfColumns);
    }
    for (int row = 0; row < block.num_rows; ++row) {
        const float* values = block.values + row * kPanelColumns;
        const Floats gate = load<Floats>(values) + gate_bias;
        const Floats up = load<Floats>(values + kHalfColumns) + up_bias;
        narrow16<D>(silu<D>(gate) * up,
                    out + row / kTileRows * tile_stride + row % kTileRows * kChunkBytes);
    }
}

// One row of a block with its bias, whole panels only.
inline Floats half_of(const Block& block, int row, int half) {
    const int column = half * kHalfColumns;
    const Floats values = load<Floats>(block.values + row * kPanelColumns + column);
    return block.bias ? values + load<Floats>(block.bias + column) : values;
}

inline float value_of(const Block& block, int row, int column) {
    const float value = block.values[row * kPanelColumns + column];
    return block.bias ? value + block.bias[column] : value;
}

// Transposes 16 rows of 16 words by interleaving rows i and i + 8, four times.
void pack_half(const uint8_t* rows, size_t stride, uint8_t* half) {
    Words in[kLanes], out[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i] = load<Words>(rows + i * stride);
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < kLanes / 2; ++i) {
            const Words a = in[i], b = in[i + 8];
            out[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                                 22, 7, 23);
            out[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                     29, 14, 30, 15, 31);
        }
        std::memcpy(in, out, sizeof in);
    }
    for (int i = 0; i < kLanes; ++i) store(in[i], half + i * kChunkBytes);
}

template <Dtype D>
void store_block(const Block& block, void* out, size_t stride) {
    constexpr int bytes = D == kBfloat16 ? 2 : 4;
    uint8_t* to = static_cast<uint8_t*>(out);
    for (int row = 0; row < block.num_rows; ++row, to += stride) {
        if (block.num_columns == kPanelColumns) {
            narrow16<D>(half_of(block, row, 0), to);
            narrow16<D>(half_of(block, row, 1), to + kHalfColumns * bytes);
            continue;
        }
        for (int column = 0; column < block.num_columns; ++column)
            narrow_some<D>(all(value_of(block, row, column)), to + column * bytes, 1);
    }
}

void add_block(const Block& block, float* sum, size_t stride) {
    for (int row = 0; row < block.num_rows; ++row, sum += stride) {
        if (block.num_columns == kPanelColumns) {
            store(load<Floats>(sum) + half_of(block, row, 0), sum);
            float* right = sum + kHalfColumns;
            store(load<Floats>(right) + half_of(block, row, 1), right);
            continue;
        }
        for (int column = 0; column < block.num_columns; ++column)
            sum[column] += value_of(block, row, column);
    }
}

template <Dtype D>
void widen_row(const void* row, int size, float* out) {
    constexpr int bytes = D == kBfloat16 ? 2 : 4;
    const uint8_t* from = static_cast<const uint8_t*>(row);
    for (int i = 0; i < size; i += kLanes)
        narrow_some<kFloat32>(widen_some<D>(from + i * bytes, size - i), out + i, size - i);
}

void nothing() {}

// 8 KiB: with 2 KiB a processor without tiles waited for memory for a fifth of the time.
constexpr int kAheadChunks = 4;

const RowKernels kTable = {
    nothing,
    nothing,
    kAheadChunks,
    {product<kFloat32>, product<kBfloat16>},
    {norm_rounded<kFloat32>, norm_rounded<kBfloat16>},
    {norm_row<kFloat32>, norm_row<kBfloat16>},
    {tile_row<kFloat32>, tile_row<kBfloat16>},
    {widen_row<kFloat32>, widen_row<kBfloat16>},
    pack_half,
    {store_block<kFloat32>, store_block<kBfloat16>},
    add_block,
    {silu_block<kFloat32>, silu_block<kBfloat16>},
    {head_block<kFloat32>, head_block<kBfloat16>},
};

}  // namespace
}  // namespace baton
