// Paged attention on CPU: what is shared by the scheduling (attention.cpp) and the kernels, of
// which there is one table for each instruction set. All strides count elements unless they say
// bytes.
#pragma once

#include <cstdint>

#include "isa.h"

namespace baton {

enum Dtype { kFloat32 = 0, kBfloat16 = 1 };

// One layer of the pool. A block's K page is [num_kv_heads, block_size, k_dim], its V page alike.
struct Layer {
    char* keys;  // the pages of block 0
    char* values;
    int64_t block_stride_bytes;  // from a block's page to the next block's
    int32_t num_kv_heads;
    int32_t block_size;
    int32_t k_dim;
    int32_t v_dim;
    int32_t dtype;  // Dtype, of the pages and of queries, new keys and values, and output

    int64_t element_bytes() const { return dtype == kFloat32 ? 4 : 2; }
};

// A flat batch: sequence s has the query tokens [query_starts[s], query_starts[s + 1]), which are
// the last of its context_lens[s] tokens; its blocks are the row block_tables + s * table_stride.
struct Step {
    const int32_t* query_starts;
    const int32_t* context_lens;
    const int32_t* block_tables;
    int64_t table_stride;
    int32_t num_seqs;
    int32_t isa;  // Isa of the kernels to use; the caller has checked that the machine has it
    // 1: each query token gets what it would get alone, however many its sequence has in this step;
    // long chunks are then attended by the kernel for few rows, which is slower.
    int32_t is_fixed;
};

struct Form {
    float scaling;
    float softcap;       // 0 means none
    int32_t window;      // a query sees so many latest positions, itself included; 0 means all
    const float* sinks;  // [num_heads], one more logit in each softmax; null means none
};

// Vectors [head, token, dim] with dense dims: queries, new keys or new values.
struct Heads {
    const char* data;
    int64_t head_stride;
    int64_t token_stride;
};

// The rows of one KV head: row r is query token r / group of head r % group of its group.
struct Rows {
    const Layer* layer;
    const Form* form;
    const int32_t* table;
    int32_t kv_head;
    int32_t group;
    int32_t first_position;  // of query token 0
    Heads queries;           // from query token 0 and the first head of the group
    char* output;            // alike; the next head follows after v_dim
    int64_t output_token_stride;

    int position(int row) const { return first_position + row / group; }
    // The rows of query token `token` and those that follow it.
    Rows from_token(int token) const {
        Rows rest = *this;
        const int64_t bytes = layer->element_bytes();
        rest.first_position += token;
        rest.queries.data += token * queries.token_stride * bytes;
        rest.output += token * output_token_stride * bytes;
        return rest;
    }
    // The first key that a query at this position sees.
    int first_key(int position) const {
        const int hidden = position + 1 - form->window;
        return form->window > 0 && hidden > 0 ? hidden : 0;
    }
};

// Keys are attended in parts of this size, aligned to the sequence's start. The partition depends
// on nothing else, so neither does a result: not on batch mates, threads or chunks.
constexpr int kPartKeys = 256;

// What a part leaves of each row: a header (maximum of the scores, sum of the weights), then the
// weighted sum of the values in the order that suits the kernel.
constexpr int kStateHeader = 16;
constexpr int kStateRounding = 32;
inline int64_t state_stride(const Layer& layer) {
    return kStateHeader + (layer.v_dim + kStateRounding - 1) / kStateRounding * kStateRounding;
}

// Memory of one thread, reused from call to call. Valid until the next call with the same arena.
class Arena {
   public:
    ~Arena();
    // At least so many bytes, aligned to 64, with unspecified content.
    void* reserve(int64_t num_bytes);

   private:
    void* memory_ = nullptr;
    int64_t num_bytes_ = 0;
};

struct Kernels {
    // Few rows over the keys [part * kPartKeys, end_key): writes states [num_rows, state_stride].
    void (*attend_part)(const Rows&, int num_rows, int part, int end_key, float* states, Arena&);
    // Adds up `num_parts` states, each `part_stride` floats after the one before, into the output.
    void (*merge_parts)(const Rows&, int num_rows, float* states, int num_parts,
                        int64_t part_stride);
    // Many rows [first_row, end_row) over all keys that they see, into the output.
    void (*attend_chunk)(const Rows&, int first_row, int end_row, Arena&);
};

// By dtype. Those of sets that this build lacks are not defined.
extern const Kernels kPortableKernels[2];
extern const Kernels kAvx2Kernels[2];
extern const Kernels kAvx512Kernels[2];
extern const Kernels kAmxKernels[2];

}  // namespace baton
