"""The edge: API, streaming, quotas, backpressure."""

TOPICS: list[tuple] = [
    (
        "what",
        ["the gateway", "an API gateway"],
        "The gateway is the front door: it checks keys and fields, drives each request through the other services, turns token ids into text and streams it to the client.",
    ),
    (
        "what",
        ["backpressure"],
        "Backpressure means that a slow consumer slows down the producer, instead of letting data pile up in between. Every queue then has a limit, and memory stays bounded.",
    ),
    (
        "simple",
        ["backpressure"],
        "Backpressure is like a kitchen that stops cooking when the counter is full of plates: the slow part tells the fast part to wait, so nothing piles up or falls down.",
    ),
    (
        "why",
        [
            "is backpressure needed|backpressure is needed",
            "do we need backpressure|we need backpressure",
            "does backpressure matter|backpressure matters",
        ],
        "Without backpressure a slow reader or a burst of requests fills queues until memory runs out, and then everybody suffers and not only the slow one.",
    ),
    (
        "how",
        ["does backpressure work|backpressure works", "is backpressure done|backpressure is done"],
        "The reader grants credit for as many tokens as it can take. The producer sends no more than that and pauses the sequence when the credit is used up.",
    ),
    (
        "what",
        ["credit", "credit-based flow control"],
        "Credit is the number of tokens that a sender may still send. The receiver grants more as it reads, so a slow reader slows down only its own stream.",
    ),
    (
        "what",
        ["SSE", "server-sent events"],
        "SSE, server-sent events, is a simple format for streaming over HTTP: each event is a line that starts with data, followed by an empty line.",
    ),
    (
        "why",
        [
            "use SSE for streaming|SSE is used for streaming",
            "is SSE used|SSE is used",
            "do LLM APIs use SSE|LLM APIs use SSE",
        ],
        "SSE is plain HTTP, works through proxies, needs no special client and fits well, because tokens flow in one direction only.",
    ),
    (
        "diff",
        ["SSE|WebSocket", "server-sent events|WebSockets"],
        "SSE streams text in one direction over plain HTTP. A WebSocket is a two-way connection with its own protocol, which an answer stream does not need.",
    ),
    (
        "what",
        ["gRPC"],
        "gRPC is a system for calls between services over HTTP/2. Messages are described in protobuf, and calls can be single or streams.",
    ),
    (
        "what",
        ["a gRPC stream", "a bidirectional stream"],
        "A gRPC stream carries many messages over one call, in both directions if wanted. Between services it saves the cost of a new call for each token.",
    ),
    (
        "why",
        [
            "share one stream among many requests|one stream is shared by many requests",
            "are streams shared between requests|streams are shared between requests",
        ],
        "One shared stream per pair of services carries the tokens of many requests in one frame per step, which costs far less CPU than a stream for each request.",
    ),
    (
        "what",
        ["protobuf", "protocol buffers"],
        "Protobuf is a compact binary format with a schema. Numbered fields allow old and new programs to understand each other.",
    ),
    (
        "what",
        ["a deadline"],
        "A deadline is the latest time at which a result is still useful. It travels with the request as remaining time, and work past it is cancelled.",
    ),
    (
        "diff",
        ["a deadline|a timeout"],
        "A timeout limits one call; a deadline limits the whole request. Each hop gets the time that is left of the deadline.",
    ),
    (
        "what",
        ["a timeout"],
        "A timeout is the longest time that one call may take before the caller gives up and handles it as a failure.",
    ),
    (
        "what",
        ["cancellation", "cancelling a request"],
        "Cancellation stops a request that nobody waits for any more. It must reach the engine, which then frees the blocks at the next step.",
    ),
    (
        "ask",
        [],
        "When a client disconnects, the gateway notices it, cancels the request on the worker, and the blocks are freed at the next step. Only tokens already made are counted.",
        [
            "What happens when a client disconnects?",
            "What happens if the client goes away?",
            "What if the user closes the browser?",
            "What happens when I close the connection?",
            "Client disconnected, what now?",
            "Does generation stop when the client leaves?",
            "What does the gateway do when a client hangs up?",
            "What happens to my request when I disconnect?",
            "What if the client drops the connection?",
            "Are tokens still made after the client has gone?",
            "How is a client disconnect handled?",
            "Explain what happens on a disconnect.",
        ],
    ),
    (
        "what",
        ["a quota", "quotas"],
        "A quota limits how much a customer may use: requests per minute, tokens per minute, requests at the same time, or a budget per month.",
    ),
    (
        "what",
        ["rate limiting", "a rate limit"],
        "Rate limiting refuses requests that come faster than agreed, with status 429 and a hint when to try again.",
    ),
    (
        "what",
        ["a token bucket", "the token bucket algorithm"],
        "A token bucket fills at a fixed rate up to a maximum, and each request takes some out. An empty bucket means wait; a full one allows a short burst.",
    ),
    (
        "diff",
        ["a token|a token bucket"],
        "A token is a piece of text for the model. A token bucket is a rate limiter whose tokens are permissions and have nothing to do with text.",
    ),
    (
        "diff",
        ["a quota|backpressure", "rate limiting|backpressure"],
        "A rate limit enforces what a customer has agreed to; backpressure protects the system from what it cannot handle right now, whoever sends it.",
    ),
    (
        "what",
        ["TPM", "tokens per minute"],
        "TPM is the limit of tokens per minute, prompt and output together. It fits LLMs better than counting requests, because requests differ in size.",
    ),
    (
        "why",
        [
            "reserve tokens in advance|tokens are reserved in advance",
            "are tokens reserved before the answer|tokens are reserved before the answer",
        ],
        "The length of an answer is unknown at the start. Reserving the maximum and paying back the rest keeps a customer from going far over the limit.",
    ),
    (
        "what",
        ["a reservation", "a quota reservation"],
        "A reservation sets tokens aside for a request before it runs. When it ends, the real number is settled and the rest is given back.",
    ),
    (
        "what",
        ["settling", "quota settlement"],
        "Settling replaces the reserved number of tokens by the real one. It happens exactly once per request, even if messages are repeated.",
    ),
    (
        "what",
        ["a tenant", "multi-tenancy"],
        "A tenant is one customer with its own keys, limits, priority and cache. Tenants share the GPUs but must not see or slow down each other.",
    ),
    (
        "what",
        ["fairness", "fair sharing", "fair scheduling"],
        "Fairness means that each tenant gets its share even when another sends very much. The queue takes turns by tokens served and not by arrival alone.",
    ),
    (
        "what",
        ["a noisy neighbour"],
        "A noisy neighbour is a tenant whose traffic slows down others on the same machines. Limits per tenant and fair queues keep it in check.",
    ),
    (
        "what",
        ["priority", "request priority"],
        "Priority decides who goes first when there is not enough room. Interactive users usually come before batch jobs.",
    ),
    (
        "what",
        ["an API key"],
        "An API key is a secret that tells who is calling. It should be stored only as a hash, be easy to replace and never appear in logs.",
    ),
    (
        "what",
        ["error 429", "HTTP 429", "status 429"],
        "Status 429 means too many requests: you are over your own limit. The Retry-After header says how many seconds to wait.",
    ),
    (
        "what",
        ["error 503", "HTTP 503", "status 503"],
        "Status 503 means that the service cannot take the request now, because it is overloaded or has no ready worker. Try again later.",
    ),
    (
        "what",
        ["error 401", "HTTP 401", "status 401"],
        "Status 401 means that the API key is missing or not valid. Check the Authorization header.",
    ),
    (
        "what",
        ["error 504", "HTTP 504", "status 504"],
        "Status 504 means that the deadline passed before the answer was ready.",
    ),
    (
        "diff",
        ["429|503", "error 429|error 503", "HTTP 429|HTTP 503"],
        "429 says that you are over your own limit; 503 says that the platform is overloaded or has no worker, even if you did nothing wrong.",
    ),
    (
        "what",
        ["Retry-After", "the Retry-After header"],
        "Retry-After is a response header that tells the client how many seconds to wait before the next try.",
    ),
    (
        "what",
        ["an OpenAI-compatible API", "the OpenAI API"],
        "An OpenAI-compatible API accepts the same paths and fields as OpenAI's, so existing clients work after changing the base address and the key.",
    ),
    (
        "what",
        ["detokenization", "a detokenizer"],
        "Detokenization turns token ids back into text. While streaming it has to hold back bytes until a character is complete.",
    ),
    (
        "what",
        ["a stop string", "a stop sequence"],
        "A stop string ends the answer as soon as it appears in the text, even when it is spread over several tokens.",
    ),
    (
        "what",
        ["finish_reason", "the finish reason"],
        "The finish reason says why an answer ended: stop for a natural end or stop string, length for the token limit.",
    ),
    (
        "what",
        ["Envoy"],
        "Envoy is a proxy at the edge. It ends TLS, balances over gateways, enforces size limits and adds a request id and traces.",
    ),
    (
        "what",
        ["TLS", "mTLS"],
        "TLS encrypts a connection and proves who the server is. With mTLS the client shows a certificate as well, so services know each other.",
    ),
    (
        "what",
        ["HTTP/2"],
        "HTTP/2 carries many requests over one connection at the same time, each in its own stream with its own flow control. gRPC is built on it.",
    ),
]
