"""The KV cache: blocks, prefix caching, memory."""

TOPICS: list[tuple] = [
    (
        "what",
        ["the KV cache", "KV cache", "the key-value cache"],
        "The KV cache stores the keys and values of all tokens read or written so far, so that each new token needs only its own computation.",
    ),
    (
        "simple",
        ["the KV cache"],
        "The KV cache is the model's notebook: instead of reading the whole conversation again for every word, it looks at its notes.",
    ),
    (
        "why",
        [
            "is there a KV cache|there is a KV cache",
            "do we need a KV cache|we need a KV cache",
            "is the KV cache needed|the KV cache is needed",
        ],
        "Without a KV cache the model would have to read the whole text again for each new token, and long answers would get slower and slower.",
    ),
    (
        "ask",
        [],
        "The size of the KV cache per token is two times layers times KV heads times head size times bytes per number. For large models that is tens to hundreds of kilobytes.",
        [
            "How big is the KV cache?",
            "How large is the KV cache?",
            "How much memory does the KV cache need?",
            "How do I compute the size of the KV cache?",
            "What is the size of the KV cache per token?",
            "KV cache size",
            "kv cache memory formula",
            "How many bytes does one token take in the KV cache?",
            "How much KV cache does a token need?",
            "How do I estimate KV cache memory?",
            "Give me the formula for the KV cache size.",
            "Calculate the KV cache size.",
        ],
    ),
    (
        "do",
        ["shrink the KV cache", "reduce KV cache memory", "make the KV cache smaller"],
        "The KV cache shrinks with grouped query attention, with FP8 instead of 16-bit values, with shorter contexts, and by sharing common prefixes.",
    ),
    (
        "what",
        ["paged attention", "PagedAttention"],
        "Paged attention keeps the KV cache in small blocks of fixed size and finds them through a block table, much like virtual memory, so that hardly any memory is wasted.",
    ),
    (
        "simple",
        ["paged attention"],
        "Paged attention is like storing a book on loose sheets in any free drawer, with a list that says which sheet lies where. No shelf has to be reserved in advance.",
    ),
    (
        "why",
        [
            "is paged attention useful|paged attention is useful",
            "was paged attention invented|paged attention was invented",
        ],
        "Nobody knows in advance how long an answer gets. Reserving the maximum wastes most of the memory; with paged attention blocks are added as the answer grows.",
    ),
    (
        "what",
        ["a block", "a KV block"],
        "A block is a fixed piece of the KV cache, for example sixteen tokens. Blocks are what is allocated, shared, moved and evicted.",
    ),
    (
        "what",
        ["block size", "the block size"],
        "The block size is the number of tokens in one block. Small blocks waste less memory and share prefixes better; large ones have less overhead.",
    ),
    (
        "what",
        ["a block table", "the block table"],
        "A block table lists, for one sequence, which blocks hold its tokens and in what order. The attention kernel reads it to find the keys and values.",
    ),
    (
        "what",
        ["the block pool"],
        "The block pool is the fixed memory that all KV blocks come from. It is allocated once at start, and its size limits how many tokens fit.",
    ),
    (
        "what",
        ["the block manager"],
        "The block manager hands out blocks from the pool, counts who uses them, finds cached ones by hash and evicts old ones when memory is short.",
    ),
    (
        "what",
        ["eviction", "block eviction"],
        "Eviction removes a cached block that no running sequence uses, usually the one unused for the longest time, to make room for a new one.",
    ),
    (
        "diff",
        ["eviction|preemption"],
        "Eviction drops cached blocks that nobody is using; preemption takes blocks away from a sequence that is still running.",
    ),
    (
        "what",
        ["LRU", "least recently used"],
        "LRU means least recently used: when room is needed, the entry that has not been touched for the longest time goes first.",
    ),
    (
        "what",
        ["prefix caching", "automatic prefix caching"],
        "Prefix caching keeps KV blocks of earlier prompts. A new prompt that starts with the same tokens reuses them and skips that part of the prefill.",
    ),
    (
        "simple",
        ["prefix caching"],
        "Prefix caching is like a cook who keeps the basic stock ready: when ten dishes begin in the same way, that part is made only once.",
    ),
    (
        "what",
        ["a prefix hit", "a cache hit"],
        "A prefix hit means that the first blocks of a prompt were found in the cache, so only the rest of the prompt has to be computed.",
    ),
    (
        "what",
        ["the cache hit rate", "the prefix hit rate"],
        "The cache hit rate is the share of prompt tokens that were found in the prefix cache. A high rate means low TTFT and cheap prompts.",
    ),
    (
        "do",
        ["raise the cache hit rate", "improve prefix caching", "get more prefix hits"],
        "To get more prefix hits, put what never changes at the beginning of the prompt, move dates and names to the end, and route similar prompts to the same worker.",
    ),
    (
        "why",
        [
            "did my prompt miss the prefix cache|my prompt missed the prefix cache",
            "is there no prefix hit|there is no prefix hit",
            "is my cache hit rate low|my cache hit rate is low",
        ],
        "A prefix only matches up to the first different token. A timestamp or a user name at the start of the prompt spoils everything after it.",
    ),
    (
        "what",
        ["a prefix hash", "a block hash"],
        "A prefix hash names a block by its own tokens and by everything before it. Equal hashes mean that the stored keys and values can be reused.",
    ),
    (
        "how",
        [
            "are block hashes chained|block hashes are chained",
            "is a prefix hash computed|a prefix hash is computed",
        ],
        "The hash of each block is computed from the hash of the block before and the block's own token ids, so one number stands for the whole prefix.",
    ),
    (
        "why",
        [
            "are prefix hashes keyed per tenant|prefix hashes are keyed per tenant",
            "is the cache separated by tenant|the cache is separated by tenant",
        ],
        "If tenants shared cached blocks, one could guess from the speed what another had asked. A secret key per tenant makes such hits impossible.",
    ),
    (
        "what",
        ["a reference count", "reference counting of blocks"],
        "A reference count says how many sequences use a block. Only at zero may the block be evicted and reused.",
    ),
    (
        "what",
        ["copy on write"],
        "Copy on write lets two sequences share a block until one of them wants to change it; only then does that one get its own copy.",
    ),
    (
        "what",
        ["memory fragmentation", "fragmentation"],
        "Fragmentation is memory that is free but cannot be used because it is cut up or reserved. Blocks of one size avoid nearly all of it.",
    ),
    (
        "what",
        ["KV offloading", "KV cache offloading"],
        "KV offloading moves blocks that are not needed now to CPU memory or disk and brings them back later, which is often cheaper than a new prefill.",
    ),
    (
        "what",
        ["an FP8 KV cache", "KV cache quantisation"],
        "An FP8 KV cache stores keys and values with eight bits instead of sixteen. Twice as many tokens fit, at the price of a small loss of accuracy.",
    ),
    (
        "ask",
        [],
        "When the KV cache is full, cached blocks are evicted first, new requests wait, and if that is not enough a running sequence is preempted.",
        [
            "What happens when the KV cache is full?",
            "What if the KV cache is full?",
            "What happens if the KV cache runs out?",
            "kv cache full, what now?",
            "What happens when blocks run out?",
            "What does the engine do when the KV cache is full?",
            "What if there are no free blocks?",
            "What happens when GPU memory for KV runs out?",
            "The KV cache is full. What happens?",
            "Tell me what happens when the KV cache is full.",
            "Explain what happens when the KV cache fills up.",
            "How does the engine react to a full KV cache?",
        ],
    ),
    (
        "ask",
        [],
        "GPU memory holds the weights, the KV cache, and working space for the current step. Whatever the weights leave free is best given to the KV cache.",
        [
            "What is GPU memory used for?",
            "What uses GPU memory?",
            "What does GPU memory hold?",
            "Where does my GPU memory go?",
            "How is GPU memory divided?",
            "What takes up memory on the GPU?",
            "What is stored in GPU memory?",
            "Why is my GPU memory full?",
            "Explain GPU memory use in serving.",
            "Tell me what fills GPU memory.",
            "gpu memory usage",
            "What lies in the memory of a GPU?",
        ],
    ),
]
