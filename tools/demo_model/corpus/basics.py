"""What a serving system is and how its speed is measured."""

TOPICS: list[tuple] = [
    (
        "what",
        ["TTFT", "time to first token"],
        "TTFT is the time to first token: how long a client waits between sending its request and seeing the first token. It covers queueing, tokenizing and the whole prefill.",
    ),
    (
        "what",
        ["ITL", "inter-token latency"],
        "ITL is the inter-token latency: the pause between two tokens of a running answer. A steady, small ITL makes a stream feel smooth.",
    ),
    (
        "what",
        ["TPOT", "time per output token"],
        "TPOT is the time per output token: the decode time divided by the number of tokens after the first. It is the average of the gaps that ITL looks at one by one.",
    ),
    (
        "diff",
        ["TTFT|ITL", "time to first token|inter-token latency"],
        "TTFT is the wait before the first token and depends on queueing and prefill. ITL is the gap between later tokens and depends on decode.",
    ),
    (
        "diff",
        ["ITL|TPOT", "TPOT|inter-token latency"],
        "ITL is each single gap between tokens, so it shows stalls. TPOT is the average gap of a whole answer, so it hides them.",
    ),
    (
        "diff",
        ["TTFT|TPOT"],
        "TTFT counts the time until the first token arrives; TPOT counts the average time for every token after it. Prefill sets the one and decode the other.",
    ),
    (
        "simple",
        ["TTFT", "time to first token"],
        "TTFT is like the time between ordering in a cafe and getting your first sip: you waited in line, the order was read, and only then did something arrive.",
    ),
    (
        "do",
        ["reduce TTFT", "lower TTFT", "improve time to first token", "get the first token sooner"],
        "To reduce TTFT, reuse cached prefixes, keep prompts short, add prefill workers, and keep the queue short by refusing work early when there is too much of it.",
    ),
    (
        "do",
        ["reduce ITL", "lower ITL", "improve inter-token latency", "make the stream smoother"],
        "To reduce ITL, keep long prefills away from the decode batch, use smaller batches or quantised weights, and spread decode over more workers.",
    ),
    (
        "what",
        ["latency"],
        "Latency is the time that one request takes. In LLM serving it is split into the wait for the first token and the pace of the tokens after it.",
    ),
    (
        "what",
        ["throughput"],
        "Throughput is how many tokens or requests a system finishes per second. It usually rises with batch size, while each single request becomes slower.",
    ),
    (
        "diff",
        ["latency|throughput"],
        "Latency is how long one request takes; throughput is how much work gets done per second. Larger batches raise throughput and worsen latency.",
    ),
    (
        "what",
        ["goodput"],
        "Goodput is the part of the throughput that met its latency targets. A system that is fast but late for everybody has high throughput and no goodput.",
    ),
    (
        "diff",
        ["goodput|throughput"],
        "Throughput counts all finished work; goodput counts only the work that was finished within its latency targets.",
    ),
    (
        "what",
        ["an SLO", "service level objective"],
        "An SLO is a service level objective: a target such as 99 percent of requests with a TTFT below one second, measured over a fixed window.",
    ),
    (
        "what",
        ["p99", "p99 latency", "tail latency"],
        "The p99 is the value that 99 percent of requests stay below. It describes the unlucky requests that an average would hide.",
    ),
    (
        "why",
        [
            "is the average latency misleading|the average latency is misleading",
            "should I look at p99 instead of the mean|I should look at p99 instead of the mean",
        ],
        "An average hides the slow requests: one user in a hundred may wait ten seconds while the mean looks fine. Percentiles such as p99 show them.",
    ),
    (
        "what",
        ["a token"],
        "A token is a piece of text that the model reads or writes as one unit, often a word or part of a word. Models see numbers for tokens, never letters.",
    ),
    (
        "what",
        ["a tokenizer"],
        "A tokenizer turns text into token ids and back. Every model has its own, so the same sentence can have a different length for another model.",
    ),
    (
        "what",
        ["tokenization"],
        "Tokenization is the step that cuts text into tokens and replaces each by its id, so that the model can work with numbers.",
    ),
    (
        "what",
        ["BPE", "byte pair encoding"],
        "BPE, byte pair encoding, builds a vocabulary by merging the most frequent pair of symbols again and again, starting from single bytes.",
    ),
    (
        "what",
        ["the vocabulary", "the vocabulary of a model"],
        "The vocabulary is the list of all tokens that a model knows. The model gives every one of them a score before each new token is chosen.",
    ),
    (
        "what",
        ["a prompt"],
        "A prompt is everything that the model reads before it answers: the system message, the conversation so far and the new question.",
    ),
    (
        "what",
        ["a system prompt", "the system message"],
        "A system prompt is a first message that sets the rules for the model. Many requests share it, so its KV cache is worth keeping.",
    ),
    (
        "what",
        ["a chat template"],
        "A chat template turns a list of messages into the one text that the model was trained on, with control tokens between the speakers.",
    ),
    (
        "what",
        ["the context window", "context length"],
        "The context window is the largest number of tokens, prompt and answer together, that a model can handle at once.",
    ),
    (
        "what",
        ["an LLM", "a large language model", "a language model"],
        "An LLM is a large language model: a network that has learned from much text to predict the next token, and writes by doing so again and again.",
    ),
    (
        "what",
        ["inference", "LLM inference"],
        "Inference is running a trained model to get answers. Unlike training it changes no weights and has somebody waiting for every token.",
    ),
    (
        "diff",
        ["training|inference"],
        "Training changes the weights and runs for weeks on known data. Inference uses fixed weights to answer requests whose users are waiting.",
    ),
    (
        "what",
        ["LLM serving", "model serving"],
        "LLM serving is running a language model for many users at once: accepting requests, batching them on GPUs, streaming answers and staying fair and reliable.",
    ),
    (
        "how",
        [
            "does an LLM generate text|an LLM generates text",
            "does a language model write an answer|a language model writes an answer",
            "does text generation work|text generation works",
        ],
        "The model reads all tokens so far, gives every token of its vocabulary a score, one is chosen and added to the text, and the loop starts again until an end token comes.",
    ),
    (
        "what",
        ["autoregressive decoding", "autoregressive generation"],
        "Autoregressive decoding means that every new token is predicted from all tokens before it, so tokens of one answer must be made one after the other.",
    ),
    (
        "what",
        ["the end token", "an EOS token", "end of sequence token"],
        "The end token is a control token with which the model says that its answer is complete. The engine stops there and frees the memory.",
    ),
    (
        "diff",
        ["a token|the end token", "an ordinary token|an EOS token"],
        "An ordinary token is a piece of text that the client gets to see; the end token is a control token that only tells the engine to stop.",
    ),
    (
        "how",
        [
            "does the model know when to stop|the model knows when to stop",
            "does an answer end|an answer ends",
            "does generation stop|generation stops",
        ],
        "Generation stops when the model emits its end token, when a stop string appears, when the token limit is reached, or when the client cancels.",
    ),
    (
        "how",
        [
            "long is a token|long a token is",
            "many characters are in a token|many characters are in a token",
        ],
        "In English a token is about four characters, or three quarters of a word. Code and other languages often need more tokens for the same text.",
    ),
    (
        "why",
        [
            "are output tokens dearer than input tokens|output tokens are dearer than input tokens",
            "are output tokens more expensive than input tokens|output tokens are more expensive than input tokens",
            "do output tokens cost more than input tokens|output tokens cost more than input tokens",
            "is output pricier than input|output is pricier than input",
        ],
        "Input tokens are read together in one parallel pass, but output tokens are made one at a time, and each one must read all weights and the KV cache again. That keeps the GPU busy for longer per token.",
        [
            "Why are output tokens dearer?",
            "Why are output tokens more expensive?",
            "Why do output tokens cost more?",
            "why is output dearer than input",
            "What makes output tokens dearer than input tokens?",
            "Why is generating dearer than reading?",
            "Why are input tokens cheaper than output tokens?",
            "Why are input tokens so cheap?",
            "Why do providers charge more for output tokens?",
            "What is the reason for the higher price of output tokens?",
            "Are output tokens dearer than input tokens, and why?",
        ],
    ),
    (
        "why",
        [
            "are LLM answers streamed|LLM answers are streamed",
            "should I stream the answer|I should stream the answer",
            "do we stream tokens|we stream tokens",
        ],
        "Tokens are made one by one, so streaming lets the user read the first words at once instead of waiting for the last one.",
    ),
    (
        "ask",
        [],
        "A request asks for one answer. Inside the engine each answer that is being written is a sequence; a request for three choices becomes three sequences.",
        [
            "What is the difference between a request and a sequence?",
            "request vs sequence",
            "Is a request the same as a sequence?",
            "What is a sequence in the engine?",
            "What is a sequence?",
            "How do request and sequence differ?",
            "Explain request and sequence.",
            "Explain what a sequence is.",
            "difference between sequence and request",
            "Compare a request with a sequence.",
            "Sequence versus request",
            "Tell me what a sequence is.",
        ],
    ),
]
