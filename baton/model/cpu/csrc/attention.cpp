// Paged attention over a flat batch: stores the new keys and values, then shares the work out to
// threads. A sequence with few query tokens is split by KV head and part of its keys, and the last
// thread to finish a head adds its parts up in order; one with many is split by KV head and rows.
// Neither kind of result depends on how the work is shared out.
#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "attention_work.h"

namespace baton {

Arena::~Arena() { std::free(memory_); }

void* Arena::reserve(int64_t num_bytes) {
    if (num_bytes > num_bytes_) {
        std::free(memory_);
        num_bytes_ = (num_bytes + 4095) / 4096 * 4096;
        memory_ = std::aligned_alloc(64, num_bytes_);
        if (!memory_) std::abort();
    }
    return memory_;
}

namespace {

// Up to so many query tokens, each gets exactly what it would get alone, at the speed of memory.
constexpr int kMaxPartQueries = 8;
// Rows of one item of a chunk: many share the packing of keys, few share the work out evenly.
constexpr int kMinChunkRows = 64, kMaxChunkRows = 512;
// So many turns for each thread at least, for an even share, or as many as there are items.
constexpr int kMinTurns = 8;
// Less work than this (bytes of keys and values that are read) is not worth waking other threads.
constexpr int64_t kSerialBytes = 128 * 1024;
constexpr int64_t kSerialStoreBytes = 64 * 1024;

// One sequence's share of the work.
struct Share {
    Rows rows;
    int num_rows;
    int num_keys;
    bool is_chunk;
    int first_part;  // of few rows
    int num_parts;
    int64_t states;    // where its states are, in floats; each head has num_parts times those rows
    int64_t counters;  // where its heads' counters of finished parts are
    int item_rows;     // of a chunk
    int num_row_items;
    int turn_heads;    // of few rows: heads whose same part a thread takes together
    int64_t end_turn;  // turns are numbered through all sequences

    int num_items(const Layer& layer) const {
        return layer.num_kv_heads * (is_chunk ? num_row_items : num_parts);
    }
    int turns_of_part(const Layer& layer) const {
        return (layer.num_kv_heads + turn_heads - 1) / turn_heads;
    }
    int num_turns(const Layer& layer) const {
        return is_chunk ? num_items(layer) : turns_of_part(layer) * num_parts;
    }
};

const Kernels& kernels_of(int isa, int dtype) {
    switch (isa) {
#if defined(BATON_WITH_AVX2)
        case kAvx2:
            return kAvx2Kernels[dtype];
#endif
#if defined(BATON_WITH_AVX512)
        case kAvx512:
            return kAvx512Kernels[dtype];
#endif
#if defined(BATON_WITH_AMX)
        case kAmx:
            return kAmxKernels[dtype];
#endif
        default:
            return kPortableKernels[dtype];
    }
}

Arena& arena_of_thread() {
    static thread_local Arena arena;
    return arena;
}

// The memory of the calling thread that all threads of a call share.
Arena& shared_arena() {
    static thread_local Arena arena;
    return arena;
}

Share share_of(const Call& call, int seq, int num_threads) {
    const Layer& layer = call.layer;
    const int start = call.step.query_starts[seq];
    const int num_queries = call.step.query_starts[seq + 1] - start;
    const int length = call.step.context_lens[seq];
    const int group = call.num_heads / layer.num_kv_heads;
    const int64_t token_stride = int64_t(call.num_heads) * layer.v_dim;
    const int64_t bytes = layer.element_bytes();
    Share share{};
    share.rows = Rows{&layer,
                      &call.form,
                      call.step.block_tables + seq * call.step.table_stride,
                      0,
                      group,
                      length - num_queries,
                      {call.queries.data + start * call.queries.token_stride * bytes,
                       call.queries.head_stride, call.queries.token_stride},
                      call.output + start * token_stride * bytes,
                      token_stride};
    share.num_rows = num_queries * group;
    share.num_keys = length - share.rows.first_key(share.rows.first_position);
    share.is_chunk = num_queries > kMaxPartQueries;
    share.first_part = (length - share.num_keys) / kPartKeys;
    share.num_parts = (length + kPartKeys - 1) / kPartKeys - share.first_part;
    const int wanted = share.num_rows * layer.num_kv_heads / (4 * num_threads);
    share.item_rows = call.step.is_fixed ? kMaxPartQueries * group
                                         : std::clamp(wanted / 32 * 32, kMinChunkRows, kMaxChunkRows);
    share.num_row_items = (share.num_rows + share.item_rows - 1) / share.item_rows;
    return share;
}

class Attention {
   public:
    Attention(const Call& call, int num_threads)
        : call_(call), kernels_(kernels_of(call.step.isa, call.layer.dtype)) {
        int64_t num_states = 0, num_counters = 0, num_items = 0;
        for (int seq = 0; seq < call.step.num_seqs; ++seq) {
            if (call.step.query_starts[seq] == call.step.query_starts[seq + 1]) continue;
            Share share = share_of(call, seq, num_threads);
            share.states = num_states;
            share.counters = num_counters;
            if (!share.is_chunk) {
                num_items += share.num_items(call.layer);
                num_states += int64_t(share.num_items(call.layer)) * share.num_rows *
                              state_stride(call.layer);
                num_counters += call.layer.num_kv_heads;
            }
            work_bytes_ += int64_t(share.num_keys) * (share.is_chunk ? share.num_row_items : 1) *
                           call.layer.num_kv_heads * (call.layer.k_dim + call.layer.v_dim) *
                           call.layer.element_bytes();
            shares_.push_back(share);
        }
        // The largest items first, so that none of them is begun last.
        std::stable_partition(shares_.begin(), shares_.end(),
                              [](const Share& s) { return s.is_chunk; });
        const int turn_heads = std::clamp<int64_t>(num_items / (kMinTurns * num_threads), 1,
                                                   call.layer.num_kv_heads);
        for (Share& share : shares_) {
            share.turn_heads = turn_heads;
            share.end_turn = num_turns_ += share.num_turns(call.layer);
        }
        states_ = static_cast<float*>(shared_arena().reserve(num_states * 4));
        counters_ = std::vector<std::atomic<int>>(num_counters);
    }

    int64_t work_bytes() const { return work_bytes_; }

    // Takes turns until none is left; every thread of the team calls it.
    void run() {
        Arena& arena = arena_of_thread();
        auto share = shares_.begin();
        for (int64_t turn;
             (turn = next_turn_.fetch_add(1, std::memory_order_relaxed)) < num_turns_;) {
            while (turn >= share->end_turn) ++share;
            const int index = turn - (share->end_turn - share->num_turns(call_.layer));
            if (share->is_chunk)
                run_rows(*share, index, arena);
            else
                run_heads(*share, index, arena);
        }
    }

   private:
    Rows rows_of(const Share& share, int kv_head) const {
        Rows rows = share.rows;
        const int64_t first_head = int64_t(kv_head) * rows.group,
                      bytes = call_.layer.element_bytes();
        rows.kv_head = kv_head;
        rows.queries.data += first_head * rows.queries.head_stride * bytes;
        rows.output += first_head * call_.layer.v_dim * bytes;
        return rows;
    }

    // One head after the other, whose keys the cache may hold; the longest items first.
    void run_rows(const Share& share, int index, Arena& arena) {
        const int kv_head = index / share.num_row_items;
        const int first = (share.num_row_items - 1 - index % share.num_row_items) * share.item_rows;
        const int end = std::min(first + share.item_rows, share.num_rows);
        const Rows rows = rows_of(share, kv_head);
        if (call_.step.is_fixed)
            run_few(rows.from_token(first / rows.group), end - first, arena);
        else
            kernels_.attend_chunk(rows, first, end, arena);
    }

    // All parts of few rows, one after the other: what run_part and its merge do.
    void run_few(const Rows& rows, int num_rows, Arena& arena) {
        static thread_local Arena state_arena;
        const int length = rows.position(num_rows - 1) + 1;
        const int first = rows.first_key(rows.first_position) / kPartKeys;
        const int num_parts = (length + kPartKeys - 1) / kPartKeys - first;
        const int64_t stride = num_rows * state_stride(call_.layer);
        float* states = static_cast<float*>(state_arena.reserve(num_parts * stride * 4));
        for (int p = 0; p < num_parts; ++p)
            kernels_.attend_part(rows, num_rows, first + p,
                                 std::min(length, (first + p + 1) * kPartKeys), states + p * stride,
                                 arena);
        kernels_.merge_parts(rows, num_rows, states, num_parts, stride);
    }

    // One part after the other. Its heads lie side by side: what the processor reads ahead of one
    // head is of the next, and lost where another thread takes that. A fifth of the rate, measured.
    void run_heads(const Share& share, int index, Arena& arena) {
        const int turns = share.turns_of_part(call_.layer);
        const int first = index % turns * share.turn_heads;
        const int end = std::min(first + share.turn_heads, call_.layer.num_kv_heads);
        for (int kv_head = first; kv_head < end; ++kv_head)
            run_part(share, kv_head, index / turns, arena);
    }

    void run_part(const Share& share, int kv_head, int which, Arena& arena) {
        const Rows rows = rows_of(share, kv_head);
        const int64_t part_stride = share.num_rows * state_stride(call_.layer);
        float* of_head = states_ + share.states + kv_head * share.num_parts * part_stride;
        const int part = share.first_part + which;
        const int length = rows.position(share.num_rows - 1) + 1;
        const int end = std::min(length, (part + 1) * kPartKeys);
        kernels_.attend_part(rows, share.num_rows, part, end, of_head + which * part_stride, arena);
        std::atomic<int>& num_done = counters_[share.counters + kv_head];
        if (num_done.fetch_add(1, std::memory_order_acq_rel) + 1 == share.num_parts)
            kernels_.merge_parts(rows, share.num_rows, of_head, share.num_parts, part_stride);
    }

    const Call& call_;
    const Kernels& kernels_;
    std::vector<Share> shares_;
    float* states_;
    std::vector<std::atomic<int>> counters_;
    std::atomic<int64_t> next_turn_{0};
    int64_t num_turns_ = 0;
    int64_t work_bytes_ = 0;
};

}  // namespace

struct AttentionWork::Plan : Attention {
    using Attention::Attention;
};
AttentionWork::AttentionWork(const Call& call, int num_threads)
    : plan_(new Plan(call, num_threads)) {}
AttentionWork::~AttentionWork() = default;
void AttentionWork::run() { plan_->run(); }

namespace {

// Copies the vectors of one token to its slot.
void store_token(const Layer& layer, char* pages, int64_t block, int slot, int dim,
                 const Heads& from, int token) {
    const int64_t bytes = layer.element_bytes(), vector_bytes = dim * bytes;
    char* to = pages + block * layer.block_stride_bytes + slot * vector_bytes;
    const char* source = from.data + token * from.token_stride * bytes;
    for (int head = 0; head < layer.num_kv_heads; ++head)
        std::memcpy(to + head * layer.block_size * vector_bytes,
                    source + head * from.head_stride * bytes, vector_bytes);
}

void store(const Step& step, const Layer& layer, const Heads& keys, const Heads& values, int seq,
           int token) {
    const int key = step.context_lens[seq] - (step.query_starts[seq + 1] - token);
    const int64_t block = step.block_tables[seq * step.table_stride + key / layer.block_size];
    const int slot = key % layer.block_size;
    store_token(layer, layer.keys, block, slot, layer.k_dim, keys, token);
    store_token(layer, layer.values, block, slot, layer.v_dim, values, token);
}

// Tokens [first, end) of the flat batch.
void store_tokens(const Step& step, const Layer& layer, const Heads& keys, const Heads& values,
                  int first, int end) {
    int seq = std::upper_bound(step.query_starts, step.query_starts + step.num_seqs, first) -
              step.query_starts - 1;
    for (int token = first; token < end; ++token) {
        while (token >= step.query_starts[seq + 1]) ++seq;
        store(step, layer, keys, values, seq, token);
    }
}

int num_tokens(const Step& step) { return step.query_starts[step.num_seqs]; }

void store_all(const Step& step, const Layer& layer, const Heads& keys, const Heads& values) {
    const int count = num_tokens(step);
    const int64_t token_bytes =
        int64_t(layer.num_kv_heads) * (layer.k_dim + layer.v_dim) * layer.element_bytes();
    if (count * token_bytes < kSerialStoreBytes)
        return store_tokens(step, layer, keys, values, 0, count);
#pragma omp parallel
    {
        const int64_t thread = omp_get_thread_num(), num_threads = omp_get_num_threads();
        store_tokens(step, layer, keys, values, count * thread / num_threads,
                     count * (thread + 1) / num_threads);
    }
}

}  // namespace
}  // namespace baton

// Stores the new keys and values of the batch in the pool, unless `keys` is null, and attends.
// Strides count elements; output is dense [num_tokens, num_heads, v_dim].
BATON_EXPORT void baton_attend(const baton::Step* step, const baton::Layer* layer,
                               const baton::Form* form, const char* queries,
                               int64_t query_head_stride, int64_t query_token_stride,
                               const char* keys, int64_t key_head_stride, int64_t key_token_stride,
                               const char* values, int64_t value_head_stride,
                               int64_t value_token_stride, int32_t num_heads, char* output) {
    using namespace baton;
    if (keys)
        store_all(*step, *layer, {keys, key_head_stride, key_token_stride},
                  {values, value_head_stride, value_token_stride});
    const Call call{*step,  *layer,   *form, {queries, query_head_stride, query_token_stride},
                    output, num_heads};
    const int num_threads = omp_get_max_threads();
    Attention attention(call, num_threads);
    if (num_threads == 1 || attention.work_bytes() < kSerialBytes) return attention.run();
#pragma omp parallel
    attention.run();
}
