"""Inside the engine: prefill, decode, batching, scheduling."""

TOPICS: list[tuple] = [
    (
        "what",
        ["prefill", "the prefill phase"],
        "Prefill is the phase in which the model reads the whole prompt in parallel, fills the KV cache and produces the first token. It is limited by arithmetic.",
    ),
    (
        "what",
        ["decode", "the decode phase", "decoding"],
        "Decode is the phase in which the model writes the answer, one token per step for each sequence. It is limited by memory bandwidth.",
    ),
    (
        "diff",
        ["prefill|decode", "the prefill phase|the decode phase"],
        "Prefill reads all prompt tokens at once and is bound by compute; decode writes one token at a time and is bound by memory bandwidth. That is why they suit different machines.",
    ),
    (
        "simple",
        ["prefill", "prefill and decode"],
        "Prefill is like reading the exam question, decode is like writing the answer: reading goes in one sweep, writing goes word by word.",
    ),
    (
        "why",
        [
            "is decode slow|decode is slow",
            "is decode memory bound|decode is memory bound",
            "is decoding limited by memory bandwidth|decoding is limited by memory bandwidth",
        ],
        "For every token decode reads all weights and the KV cache from memory but does little arithmetic with them, so the memory bandwidth sets the pace.",
    ),
    (
        "why",
        [
            "is prefill compute bound|prefill is compute bound",
            "is prefill limited by arithmetic|prefill is limited by arithmetic",
        ],
        "In prefill thousands of tokens share each weight that is read, so the arithmetic units are the bottleneck and not the memory.",
    ),
    (
        "why",
        [
            "does prefill disturb decode|prefill disturbs decode",
            "do long prompts make other streams stutter|long prompts make other streams stutter",
        ],
        "A long prefill keeps the GPU busy for a whole step, and every sequence in the same batch has to wait for its next token. Users see that as a stutter.",
    ),
    (
        "what",
        ["continuous batching", "in-flight batching", "iteration level scheduling"],
        "Continuous batching rebuilds the batch after every step: finished sequences leave and waiting ones join at once, so that no place stays empty.",
    ),
    (
        "simple",
        ["continuous batching"],
        "Continuous batching is like a ski lift: people get on and off all the time, and nobody waits until a whole bus is full.",
    ),
    (
        "what",
        ["static batching"],
        "Static batching collects some requests, computes them together and returns when the longest one is done. Short answers wait for long ones.",
    ),
    (
        "diff",
        ["continuous batching|static batching"],
        "Static batching keeps the same requests together until the last one ends; continuous batching lets sequences join and leave after every step.",
    ),
    (
        "what",
        ["a batch"],
        "A batch is the set of sequences that the model works on together in one step. The weights are read once for all of them.",
    ),
    (
        "what",
        ["batch size", "the batch size"],
        "The batch size is the number of sequences in one step. Larger batches give more tokens per second in total but a longer step for each user.",
    ),
    (
        "why",
        [
            "is batching useful|batching is useful",
            "does batching help|batching helps",
            "do we batch requests|we batch requests",
            "does batching raise throughput|batching raises throughput",
        ],
        "Reading the weights from memory costs the same for one sequence as for thirty. With a batch that cost is shared, so the tokens per second go up.",
    ),
    (
        "what",
        ["a step", "an engine step"],
        "A step is one pass of the model over the current batch. Each decoding sequence gets one token from it, and prefill chunks advance by their length.",
    ),
    (
        "what",
        ["chunked prefill", "a prefill chunk"],
        "Chunked prefill cuts a long prompt into pieces and runs one piece per step next to the decoding sequences, so that nobody has to wait for the whole prompt.",
    ),
    (
        "why",
        [
            "do we need chunked prefill|we need chunked prefill",
            "is chunked prefill useful|chunked prefill is useful",
        ],
        "Without chunked prefill a single long prompt would block the batch for seconds. With chunks the running answers get their tokens in between.",
    ),
    (
        "diff",
        ["prefill|chunked prefill"],
        "Prefill is the reading of the prompt as such. Chunked prefill is a way to do it: in pieces, spread over several steps.",
    ),
    (
        "diff",
        ["chunked prefill|disaggregation"],
        "Chunked prefill mixes small pieces of prompts with decoding on the same GPU; disaggregation moves prompts to other GPUs altogether. The one limits the disturbance, the other removes it.",
    ),
    (
        "what",
        ["the token budget", "the step token budget"],
        "The token budget is the largest number of tokens that one step may process. Decoding sequences are served first and prefill chunks fill what is left.",
    ),
    (
        "what",
        ["the scheduler", "the engine scheduler"],
        "The scheduler decides before every step which sequences run, how many prompt tokens are read and who has to wait, so that memory and token budget suffice.",
    ),
    (
        "what",
        ["preemption"],
        "Preemption takes a running sequence out of the batch because memory ran short. Its blocks are freed, and later its tokens are read again.",
    ),
    (
        "why",
        [
            "was my sequence preempted|my sequence was preempted",
            "does preemption happen|preemption happens",
            "do engines preempt sequences|engines preempt sequences",
        ],
        "Sequences grow while they are written. When the block pool runs out, the newest sequence is preempted so that the others can continue.",
    ),
    (
        "what",
        ["the running batch"],
        "The running batch is the set of sequences that are decoding right now. A new sequence joins it as soon as its KV cache is complete.",
    ),
    (
        "what",
        ["head-of-line blocking"],
        "Head-of-line blocking means that one slow item at the front of a queue holds up everything behind it, even work that could be done quickly.",
    ),
    (
        "what",
        ["attention", "self-attention"],
        "Attention lets each token look back at all earlier tokens and take over what matters. It compares a query with stored keys and mixes the values.",
    ),
    (
        "what",
        ["a transformer", "the transformer"],
        "A transformer is a stack of layers that mix tokens with attention and transform each one with a small network. Nearly all language models are built so.",
    ),
    (
        "what",
        ["FlashAttention"],
        "FlashAttention computes attention in small tiles that fit into fast on-chip memory, so that the large score matrix is never written out.",
    ),
    (
        "what",
        ["a kernel", "a GPU kernel"],
        "A kernel is a function that runs on the GPU with many threads at once. One step of a model launches hundreds of kernels.",
    ),
    (
        "what",
        ["a CUDA graph", "CUDA graphs"],
        "A CUDA graph records a whole series of kernel launches and replays it with one call. That removes launch cost from short decode steps.",
    ),
    (
        "what",
        ["GQA", "grouped query attention"],
        "In grouped query attention several query heads share one key and value head. That makes the KV cache several times smaller.",
    ),
    (
        "what",
        ["MLA", "multi-head latent attention"],
        "Multi-head latent attention stores one small compressed vector per token instead of full keys and values, and so needs far less KV cache.",
    ),
    (
        "what",
        ["a mixture of experts", "MoE", "a mixture of experts model"],
        "A mixture of experts model has many small networks per layer and uses only a few of them for each token. It has many weights but little work per token.",
    ),
    (
        "what",
        ["RoPE", "rotary position embedding"],
        "RoPE turns queries and keys by an angle that depends on their position, so that attention sees how far apart two tokens are.",
    ),
    (
        "what",
        ["speculative decoding"],
        "Speculative decoding lets a cheap draft guess several tokens, which the large model checks in one pass. Right guesses are kept, so one step yields several tokens.",
    ),
    (
        "why",
        [
            "does speculative decoding help|speculative decoding helps",
            "is speculative decoding faster|speculative decoding is faster",
        ],
        "Checking five tokens takes about as long as making one, because the weights are read once anyway. Every right guess is a token almost for free.",
    ),
    (
        "do",
        ["choose when to use speculative decoding", "decide about speculative decoding"],
        "Use speculative decoding when batches are small and the GPU has arithmetic to spare. With large batches the extra checking costs more than it brings.",
    ),
    (
        "what",
        ["a draft model"],
        "A draft model is a small, fast model that proposes tokens for a large one to check. Its guesses affect the speed but not the result.",
    ),
    (
        "what",
        ["the acceptance rate"],
        "The acceptance rate is the share of guessed tokens that the large model agrees with. It decides whether speculative decoding pays off.",
    ),
    (
        "what",
        ["the engine", "an inference engine"],
        "The engine is the part of a worker that schedules sequences, manages the KV blocks and runs the model step by step.",
    ),
    (
        "what",
        ["a warm-up", "warming up the engine"],
        "A warm-up runs some dummy steps before real traffic, so that memory is allocated and kernels are compiled when the first user comes.",
    ),
]
