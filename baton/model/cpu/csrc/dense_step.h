// A whole step of a dense decoder (Llama, Mistral, Qwen2, Qwen3): embedding, layers, logits of the
// wanted rows. Structures are filled by dense.py and mirrored there.
#pragma once

#include "attention.h"
#include "panels.h"

namespace baton {

struct DenseLayer {
    Matrix qkv;      // columns are heads: of queries, of keys, of values
    Matrix output;
    Matrix gate_up;  // each panel is 16 columns of gate and the same 16 of up
    Matrix down;
    const float* input_norm;  // RMSNorm weights [hidden]
    const float* mlp_norm;
    const float* query_norm;  // [head_dim], or null for no norm of queries and keys
    const float* key_norm;
    int32_t window;  // of sliding attention; 0 means all
};

struct DenseModel {
    const DenseLayer* layers;
    const void* embedding;  // [vocab][hidden] of the dtype
    const float* final_norm;
    const float* frequencies;  // of the rotation, [head_dim / 2]
    Matrix logits;
    int32_t dtype;
    int32_t isa;
    int32_t num_layers;
    int32_t hidden;  // a multiple of 32, as are all sizes
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    float eps;
    float scaling;         // of attention
    float rotation_scale;  // of cosines and sines
};

struct DenseBatch {
    Step attention;
    const int64_t* token_ids;  // [num_tokens]
    const int64_t* positions;
    const int32_t* logit_rows;  // [num_logit_rows] tokens whose logits are wanted
    float* logits;              // [num_logit_rows][vocab]
    int32_t num_tokens;
    int32_t num_logit_rows;
    int32_t num_threads;
    // Numbers of layers, ascending: `reached` is called with each when all keys and values are
    // stored in so many layers, the first ones. By the thread that called the step.
    const int32_t* marks;
    int32_t num_marks;
    void (*reached)(int32_t mark);
};

}  // namespace baton
