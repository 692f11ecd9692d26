// See dense_step.h. One parallel region does it all, in phases that end at barriers; in each phase
// the threads take units of work from a common counter. The sum of a token's layers (the residual)
// is kept in float32.
#include "dense_step.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "attention_work.h"
#include "matmul.h"

namespace baton {
namespace {

// Where a token's keys and values go.
struct Slot {
    int64_t block;
    int32_t index;
};

// Buffers of one step, kept from step to step.
class Buffers {
   public:
    // Rows of a power of two of bytes would all meet in the same few places of the caches.
    static constexpr int kResidualPadding = 32;

    void reserve(const DenseModel& model, const DenseBatch& batch) {
        const int64_t rows = batch.num_tokens;
        residual_stride = model.hidden + kResidualPadding;
        const int64_t tiled_rows = (std::max(batch.num_tokens, batch.num_logit_rows) + 31) / 32 * 32;
        const int64_t heads = static_cast<int64_t>(model.num_heads) * model.head_dim;
        const int64_t bytes = value_bytes(static_cast<Dtype>(model.dtype));
        const int64_t inner = model.layers->down.num_chunks * static_cast<int64_t>(kChunkBytes);
        residual = static_cast<float*>(residual_.reserve(rows * residual_stride * 4));
        cosines = static_cast<float*>(cosines_.reserve(rows * model.head_dim / 2 * 4));
        sines = static_cast<float*>(sines_.reserve(rows * model.head_dim / 2 * 4));
        queries = static_cast<uint8_t*>(queries_.reserve(rows * heads * bytes));
        attended = static_cast<uint8_t*>(attended_.reserve(rows * heads * bytes));
        tiled = static_cast<uint8_t*>(
            tiled_.reserve(tiled_rows * std::max<int64_t>(model.hidden, heads) * bytes));
        gated = static_cast<uint8_t*>(gated_.reserve(tiled_rows * inner));
        slots = static_cast<Slot*>(slots_.reserve(rows * sizeof(Slot)));
    }

    float* residual;          // [tokens][residual_stride]
    float *cosines, *sines;   // [tokens][head_dim / 2]
    int64_t residual_stride;
    uint8_t *queries, *attended;        // [heads][tokens][head_dim], [tokens][heads][head_dim]
    uint8_t *tiled, *gated;             // tiled rows: what enters a product, and the MLP's inside
    Slot* slots;

   private:
    Arena residual_, cosines_, sines_, queries_, attended_, tiled_, gated_, slots_;
};

class DenseStep {
   public:
    DenseStep(const DenseModel& model, const Layer* pages, const DenseBatch& batch, Buffers& buffers)
        : model_(model),
          pages_(pages),
          batch_(batch),
          buffers_(buffers),
          kernels_(row_kernels_for(static_cast<Isa>(model.isa))),
          dtype_(static_cast<Dtype>(model.dtype)),
          bytes_(value_bytes(dtype_)),
          team_(batch.num_threads) {}

    // Every thread of the region calls it once.
    void run(float* scratch) {
        team_.enter();
        kernels_.begin();
        team_.share(batch_.num_tokens, [&](int token) { start_token(token); });
        for (int layer = 0; layer < model_.num_layers; ++layer) {
            attend(layer, scratch);
            if (omp_get_thread_num() == 0) tell(layer + 1);
            transform(model_.layers[layer], scratch);
        }
        finish(scratch);
        kernels_.end();
    }

   private:
    float* residual(int token) const {
        return buffers_.residual + token * buffers_.residual_stride;
    }

    void start_token(int token) const {
        const size_t row_bytes = static_cast<size_t>(model_.hidden) * bytes_;
        const uint8_t* embedding = static_cast<const uint8_t*>(model_.embedding);
        kernels_.widen_row[dtype_](embedding + batch_.token_ids[token] * row_bytes, model_.hidden,
                                   residual(token));
        const int half = model_.head_dim / 2;
        const float position = static_cast<float>(batch_.positions[token]);
        for (int i = 0; i < half; ++i) {
            const float angle = position * model_.frequencies[i];
            buffers_.cosines[token * half + i] = std::cos(angle) * model_.rotation_scale;
            buffers_.sines[token * half + i] = std::sin(angle) * model_.rotation_scale;
        }
        const Step& step = batch_.attention;
        const int seq =
            std::upper_bound(step.query_starts, step.query_starts + step.num_seqs, token) -
            step.query_starts - 1;
        const int64_t key = batch_.positions[token], size = pages_->block_size;
        buffers_.slots[token] = {step.block_tables[seq * step.table_stride + key / size],
                                 static_cast<int32_t>(key % size)};
    }

    // All tokens' residuals, normed, to tiled rows.
    void norm(const float* weight) {
        const int chunks = num_chunks(dtype_, model_.hidden);
        team_.share(batch_.num_tokens, [&](int token) {
            kernels_.norm_row[dtype_](residual(token), weight, model_.hidden, model_.eps,
                                      buffers_.tiled + tiled_offset(token, 0, chunks));
        });
    }

    void attend(int index, float* scratch) {
        const DenseLayer& layer = model_.layers[index];
        const Layer& pages = pages_[index];
        if (omp_get_thread_num() == 0) plan_attention(layer, pages);
        norm(layer.input_norm);
        multiply(team_, kernels_, dtype_, layer.qkv, buffers_.tiled, batch_.num_tokens,
                 model_.head_dim / kPanelColumns, scratch, [&](const Results& results) {
                     finish_head(layer, pages, results);
                 });
        attention_->run();
        team_.meet();
        kernels_.begin();  // attention may have used the same registers
        const int size = model_.num_heads * model_.head_dim, chunks = num_chunks(dtype_, size);
        team_.share(batch_.num_tokens, [&](int token) {
            kernels_.tile_row[dtype_](buffers_.attended + static_cast<size_t>(token) * size * bytes_,
                                      size, buffers_.tiled + tiled_offset(token, 0, chunks));
        });
        add_product(layer.output, buffers_.tiled, scratch);
    }

    // All threads have stored their part of the first `num_layers` layers. The others go on.
    void tell(int num_layers) {
        if (next_mark_ == batch_.num_marks || batch_.marks[next_mark_] != num_layers) return;
        ++next_mark_;
        batch_.reached(num_layers);
    }

    void plan_attention(const DenseLayer& layer, const Layer& pages) {
        const int64_t dim = model_.head_dim;
        form_ = {model_.scaling, 0.0f, layer.window, nullptr};
        call_.reset(new Call{batch_.attention,
                             pages,
                             form_,
                             {reinterpret_cast<char*>(buffers_.queries), dim * batch_.num_tokens, dim},
                             reinterpret_cast<char*>(buffers_.attended),
                             model_.num_heads});
        attention_.reset(new AttentionWork(*call_, batch_.num_threads));
    }

    // One head of a projection: a query to its buffer, a key or value to its page.
    void finish_head(const DenseLayer& layer, const Layer& pages, const Results& results) const {
        const int dim = model_.head_dim, half = dim / 2;
        const int head = results.first_panel * kPanelColumns / dim;
        const int kv = head - model_.num_heads;
        const bool is_value = kv >= model_.num_kv_heads;
        void* outs[kBlockRows];
        for (int r = 0; r < results.num_rows; ++r) {
            const int token = results.first_row + r;
            outs[r] = kv < 0 ? buffers_.queries +
                                   (static_cast<size_t>(head) * batch_.num_tokens + token) * dim * bytes_
                             : page_of(pages, token, is_value ? kv - model_.num_kv_heads : kv, is_value);
        }
        const float* rotation = buffers_.cosines + results.first_row * half;
        kernels_.head_block[dtype_](
            {results.values, kPanelFloats, results.num_rows, dim,
             layer.qkv.bias ? layer.qkv.bias + head * dim : nullptr,
             is_value ? nullptr : (kv < 0 ? layer.query_norm : layer.key_norm), model_.eps,
             is_value ? nullptr : rotation, buffers_.sines + results.first_row * half, outs});
    }

    void* page_of(const Layer& pages, int token, int kv_head, bool is_value) const {
        const Slot& slot = buffers_.slots[token];
        char* page = (is_value ? pages.values : pages.keys) + slot.block * pages.block_stride_bytes;
        return page +
               (static_cast<size_t>(kv_head) * pages.block_size + slot.index) * model_.head_dim * bytes_;
    }

    void transform(const DenseLayer& layer, float* scratch) {
        norm(layer.mlp_norm);
        multiply_gated(team_, kernels_, dtype_, layer.gate_up, buffers_.tiled, batch_.num_tokens,
                       layer.down.num_chunks, buffers_.gated, scratch);
        add_product(layer.down, buffers_.gated, scratch);
    }

    // residual += rows times the matrix.
    void add_product(const Matrix& matrix, const uint8_t* rows, float* scratch) {
        multiply(team_, kernels_, dtype_, matrix, rows, batch_.num_tokens, 1, scratch,
                 [&](const Results& results) {
                     float* sum = residual(results.first_row) + results.first_panel * kPanelColumns;
                     kernels_.add_block(block_of(results, matrix), sum, buffers_.residual_stride);
                 });
    }

    void finish(float* scratch) {
        const int num_rows = batch_.num_logit_rows, chunks = num_chunks(dtype_, model_.hidden);
        team_.share(num_rows, [&](int row) {
            kernels_.norm_row[dtype_](residual(batch_.logit_rows[row]), model_.final_norm,
                                      model_.hidden, model_.eps,
                                      buffers_.tiled + tiled_offset(row, 0, chunks));
        });
        const size_t stride = model_.logits.num_columns * sizeof(float);
        multiply(team_, kernels_, dtype_, model_.logits, buffers_.tiled, num_rows, 1, scratch,
                 [&](const Results& results) {
                     uint8_t* out = reinterpret_cast<uint8_t*>(batch_.logits) +
                                    results.first_row * stride +
                                    results.first_panel * kPanelColumns * sizeof(float);
                     kernels_.store_block[kFloat32](block_of(results, model_.logits), out, stride);
                 });
    }

    const DenseModel& model_;
    const Layer* pages_;
    const DenseBatch& batch_;
    Buffers& buffers_;
    const RowKernels& kernels_;
    const Dtype dtype_;
    const int bytes_;
    Team team_;
    int next_mark_ = 0;
    Form form_;
    std::unique_ptr<Call> call_;
    std::unique_ptr<AttentionWork> attention_;
};

template <int... Dims>
bool has_head_dim(int dim, std::integer_sequence<int, Dims...>) {
    return ((dim == Dims) || ...);
}

}  // namespace
}  // namespace baton

// Whether there are kernels for heads of this size.
BATON_EXPORT int baton_has_head_dim(int dim) { return baton::has_head_dim(dim, baton::HeadDims()); }

// Computes a batch: stores its keys and values in `pages` (one Layer for each layer of the model)
// and writes the wanted logits. One call at a time in a thread.
BATON_EXPORT void baton_dense_step(const baton::DenseModel* model, const baton::Layer* pages,
                                   const baton::DenseBatch* batch) {
    using namespace baton;
    static thread_local Buffers buffers;
    buffers.reserve(*model, *batch);
    DenseStep step(*model, pages, *batch, buffers);
    const int group = model->head_dim / kPanelColumns;
#pragma omp parallel num_threads(batch->num_threads)
    {
        static thread_local Arena scratch;
        step.run(static_cast<float*>(scratch.reserve(group * kPanelFloats * sizeof(float))));
    }
}
