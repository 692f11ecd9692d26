// Scores to softmax weights. Scores and maxima are in units of log2, so that exp2 gives weights.
#pragma once

#include "attention.h"
#include "vectors.h"

namespace baton {
namespace {

constexpr float kLog2e = 1.44269504f;
// Stands for the maximum of no scores: finite, so that hidden scores (-inf) get the weight 0.
constexpr float kNoMaximum = -1e30f;

// From products of query and key to scores.
struct Scorer {
    explicit Scorer(const Form& form)
        : factor(form.softcap > 0 ? form.scaling / form.softcap : form.scaling * kLog2e),
          cap(form.softcap > 0 ? form.softcap * kLog2e : 0) {}

    Floats operator()(Floats products) const {
        const Floats scaled = products * factor;
        return cap > 0 ? tanh(scaled) * cap : scaled;
    }

    // Whether scores are products times `factor`, which is positive.
    bool is_linear() const { return cap == 0 && factor > 0; }

    float factor, cap;
};

// A row's `count` products to scores; like all counts here, that is a multiple of kWidth.
inline void score_row(const Scorer& scorer, float* products, int count) {
    for (int i = 0; i < count; i += kWidth) store(products + i, scorer(load<Floats>(products + i)));
}

// Leaves only the scores [begin, end) of a row; the others become -inf.
inline void hide(float* scores, int count, int begin, int end) {
    const Floats hidden = splat(-__builtin_inff());
    for (int i = 0; i < count; i += kWidth) {
        if (begin <= i && i + kWidth <= end) continue;
        const Ints lanes = lane_numbers() + i;
        const Ints is_seen = (lanes >= begin) & (lanes < end);
        store(scores + i, is_seen ? load<Floats>(scores + i) : hidden);
    }
}

inline float highest_of(const float* scores, int count) {
    Floats highest = load<Floats>(scores);
    for (int i = kWidth; i < count; i += kWidth)
        highest = maximum(highest, load<Floats>(scores + i));
    return maximum_of(highest);
}

// The weights of the scores `factor` * values, relative to `highest`. Returns sums of them, which
// are to be added up.
inline Floats weigh_row(const float* values, int count, float factor, float highest,
                        float* weights) {
    Floats sums = splat(0.0f);
    for (int i = 0; i < count; i += kWidth) {
        const Floats weight = exp2(load<Floats>(values + i) * factor - highest);
        store(weights + i, weight);
        sums = sums + weight;
    }
    return sums;
}

#if defined(__AVX512BF16__)
// The same to bfloat16, `count` being a multiple of kPair.
inline Floats weigh_row(const float* values, int count, float factor, float highest,
                        Bf16* weights) {
    Floats sums = splat(0.0f);
    for (int i = 0; i < count; i += kPair) {
        const Floats low = exp2(load<Floats>(values + i) * factor - highest);
        const Floats high = exp2(load<Floats>(values + i + kWidth) * factor - highest);
        store(weights + i, _mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        sums = sums + (low + high);
    }
    return sums;
}
#endif

// The output of one row: what load_pair's lanes hold in `sums`, times `factor`.
template <class T>
inline void write_row(T* output, const float* sums, int v_dim, float factor) {
    for (int dim = 0; dim < v_dim; dim += kPair) {
        const Pair pair = {load<Floats>(sums + dim) * factor,
                           load<Floats>(sums + dim + kWidth) * factor};
        store_pair(output + dim, pair, v_dim - dim);
    }
}

inline float sink_score(const Rows& rows, int row) {
    const int head = rows.kv_head * rows.group + row % rows.group;
    return rows.form->sinks ? rows.form->sinks[head] * kLog2e : kNoMaximum;
}

}  // namespace
}  // namespace baton
