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

    float factor, cap;
};

// Scores of the keys [begin, end) that a row sees, out of `count` keys, a multiple of kWidth.
// Replaces the products by scores, -inf where hidden, and returns the maximum.
inline float score_row(const Scorer& scorer, float* products, int count, int begin, int end) {
    Floats highest = splat(kNoMaximum);
    for (int i = 0; i < count; i += kWidth) {
        Floats scores = scorer(load<Floats>(products + i));
        if (i < begin || i + kWidth > end) {
            const Ints lanes = lane_numbers() + i;
            const Ints is_seen = (lanes >= begin) & (lanes < end);
            scores = is_seen ? scores : splat(-__builtin_inff());
        }
        store(products + i, scores);
        highest = maximum(highest, scores);
    }
    return maximum_of(highest);
}

// Scores to weights relative to `highest`, in place. Returns their sum.
inline float weigh_row(float* scores, int count, float highest) {
    Floats sum = splat(0.0f);
    for (int i = 0; i < count; i += kWidth) {
        const Floats weights = exp2(load<Floats>(scores + i) - highest);
        store(scores + i, weights);
        sum = sum + weights;
    }
    return sum_of(sum);
}

// The same where the weights are multiplied as bfloat16, `count` being a multiple of kPair.
inline float weigh_row(const float* scores, int count, float highest, Bf16* weights) {
    Floats sum = splat(0.0f);
#if defined(__AVX512BF16__)
    for (int i = 0; i < count; i += kPair) {
        const Floats low = exp2(load<Floats>(scores + i) - highest);
        const Floats high = exp2(load<Floats>(scores + i + kWidth) - highest);
        store(weights + i, _mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        sum = sum + low + high;
    }
#endif
    return sum_of(sum);
}

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
