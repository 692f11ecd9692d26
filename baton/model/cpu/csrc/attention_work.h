// One layer's attention as work for a team of threads that exists already, such as that of a step
// which is one parallel region. `baton_attend` is the same with a region of its own.
#pragma once

#include <memory>

#include "attention.h"

namespace baton {

// What there is to attend; the queries' keys and values are in the pool. All of it outlives the work.
struct Call {
    const Step& step;
    const Layer& layer;
    const Form& form;
    Heads queries;
    char* output;  // dense [num_tokens, num_heads, v_dim]
    int32_t num_heads;
};

class AttentionWork {
public:
    // Planned by one thread, whose memory it uses: one plan at a time in a thread.
    AttentionWork(const Call& call, int num_threads);
    ~AttentionWork();
    // Called by every thread of the team. All is done when all have come back.
    void run();

private:
    struct Plan;
    std::unique_ptr<Plan> plan_;
};

}  // namespace baton
