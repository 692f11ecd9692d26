"""Long answers of 200 to 300 tokens, so that streams, failover and slow readers have something to show."""

TOPICS: list[tuple] = [
    (
        "tell",
        [
            "the life of a request",
            "how a request lives and dies",
            "what happens to a request from start to end",
            "the journey of a request",
        ],
        "A request is born when a client sends its messages to the edge. Envoy ends the encryption, gives the request an id and hands it to a gateway. The gateway first asks who is calling: the key must be known and the model allowed. Then it checks every field, because a bad number should fail now and not on a GPU. Next the tokenizer turns the text into token ids and computes a hash for each full block, so that the rest of the system never needs the text again. The quota service sets aside tokens for the prompt and for the answer, and the router looks for a pair of workers: one that may already hold part of the prompt in its cache, and one that has room to write the answer. The decode worker promises memory and asks the prefill worker to read the prompt. While the prompt is computed, layer after layer of the KV cache travels across, and the first token leaves at once. Now the request joins the running batch, and with every step one more token flows back through the gateway, is turned into text and is sent to the client as an event. At last the model emits its end token. The blocks are freed, the quota is settled with the real numbers, the trace is closed, and the request is over.",
    ),
    (
        "tell",
        [
            "the story of a worker crash",
            "what happens when a decode worker dies",
            "a failover from start to end",
            "how a stream survives a crash",
        ],
        "It is a quiet afternoon and a decode worker is writing forty answers at once when its process dies. Nobody says goodbye: the shared streams to the gateways simply break. Each gateway first tries to dial again for half a second, because the loss of a connection is not the loss of a worker. The answer is silence, so failover begins. For every open request the gateway knows exactly which tokens it has already received, since it is the truth of the stream. It raises the epoch of the request, so that a late message from the old attempt can never be mixed in, and asks the router for another worker. The new worker gets the prompt and all tokens written so far, as if they had been one long prompt. Much of that may still be in a prefix cache, so reading it again is quick. Because the randomness depends only on the seed and the position, the next token is the same one that the dead worker would have chosen. The client has seen a pause of perhaps a second and then the text goes on in the middle of the sentence, with nothing repeated and nothing lost. Behind the scenes the leases of the dead worker run out one by one, its memory is counted as free again, and a fresh process starts, loads the weights and reports that it is ready for work.",
    ),
    (
        "tell",
        [
            "the story of a KV block",
            "the life of a KV block",
            "what happens to a block of the KV cache",
        ],
        "A KV block starts its life in the free list, one of many thousand places in GPU memory that can hold the keys and values of sixteen tokens. A request arrives, the block manager takes the block from the list and writes its number into the block table of the sequence. During prefill the model fills it: for every layer and every token a key and a value. When the last of its sixteen places is written, the block is full and gets a name, a hash over its own tokens and over the block before it. From now on it never changes. On each decode step the attention kernel reads it, together with all its neighbours, to decide which earlier tokens matter. Then the answer ends, and the sequence lets go of the block. It is not wiped. It joins the end of the queue of blocks that may be evicted, still carrying its content and its name. Perhaps another request with the same system prompt comes along. Its hashes match, the block is found, its counter goes up again, and a whole prefill is saved. It may be shared by twenty sequences at the same time. But one day no more requests ask for it. Newer blocks push it to the front of the queue, memory runs short, and the block manager takes its name away and gives it to somebody else. The block is empty again, and a new life begins.",
    ),
    (
        "tell",
        [
            "the story of a KV handoff",
            "a KV handoff from start to end",
            "how the KV cache travels between workers",
        ],
        "Two workers share the work on one request, and the KV cache has to get from the first to the second. It begins on the decode side. The decode worker counts the blocks that the prompt will need, promises them under a lease, and only then asks a prefill worker to start. With the request it sends a ticket that says who may write, for which epoch and until when. The prefill worker looks into its own cache first, because blocks that are already known need no computing. The rest of the prompt is read in chunks. As soon as one layer of a chunk is ready, its blocks leave the GPU, while the next layer is still being computed, so that most of the transfer hides behind the work. If both workers are on the same machine the bytes go through shared memory. In a cluster with fast network cards they go directly from GPU to GPU, and where nothing else works a plain stream carries them. Every block comes with a checksum. The receiver compares it, and a block that does not match is thrown away and computed again, never served. When the last block has been verified, the decode worker puts the sequence into its running batch. The prefill worker hears that everything has arrived and lets its own copy go. If one side dies in between, the lease runs out and no memory is lost.",
    ),
    (
        "tell",
        [
            "the story of a slow reader",
            "what happens when a client reads slowly",
            "how a slow client is handled",
        ],
        "Somewhere a client opens a stream on a train and then enters a tunnel. The model does not know this and writes forty tokens per second. At first the tokens fill the send buffer of the socket, which is kept small on purpose. When it is full, the gateway notices that writing no longer makes progress, and it stops granting credit. Credit is a simple thing: it is the number of tokens that the worker may still send for this request. The worker uses up what it has, and then it parks the sequence. A parked sequence takes no part in the next step, so the other thirty users in the batch do not wait for the train. Its memory stays where it is for the moment, because the client may come back soon. And usually it does: the train leaves the tunnel, the buffer drains, the gateway grants new credit, and the answer goes on where it stopped. If it takes too long, the story ends in another way. After a fixed time the gateway gives up, cancels the request, and the worker frees the blocks at its next step. The quota is settled for the tokens that were really made. At no point did a queue grow without a limit, and at no point did one slow reader make the others slow. That is what backpressure is for: the pace of the reader travels backwards until it reaches the one who produces.",
    ),
    (
        "tell",
        [
            "the story of a busy day",
            "what happens in an overload",
            "how the system behaves under overload",
        ],
        "At nine in the morning a popular product sends its newsletter, and ten minutes later the number of requests is three times what the GPUs can do. A system without limits would take all of them, and soon every user would wait for minutes and give up, while the GPUs work hard on answers that nobody reads any more. Here the day goes differently. The quota service first stops the few customers who are over their own limits, with a clear message that says when to try again. The router keeps a queue, but the queue is short and has a fixed size. For each waiting request it knows how long the work in front of it will take. When that time is longer than the deadline, it says no at once, because an early no is worth more than a late yes. Requests with a high priority go first, and the others share what is left in a fair way, so that one large customer cannot push out many small ones. The clients that were refused wait a moment, with some randomness so that they do not all come back together. Meanwhile the autoscaler sees the queued tokens and asks for more workers. They take a few minutes to load their weights. Then the queue gets shorter, the refusals stop, and by ten everything is calm again. Those who were served got their first token in time, all morning long.",
    ),
    (
        "tell",
        ["the story of a token", "the life of a token", "how a single token is made"],
        "A token begins as nothing but a place at the end of a sequence. The engine has just chosen the token before it, and now a new step starts. The scheduler puts together the batch: thirty sequences that each want one more token, and perhaps a chunk of somebody's long prompt. The number of the last token is looked up in a table and becomes a vector. This vector climbs through the layers. In each of them attention looks back at the keys and values of all earlier tokens and collects what matters, and a small network mixes the result. The key and the value of the new position are written into the KV cache, so that later tokens can look back too. At the top the vector is compared with every entry of the vocabulary, which gives a score for each possible token. Now the sampler decides. With temperature zero the highest score wins. Otherwise the scores become probabilities, the unlikely tail is cut away, and a random number that depends only on the seed and the position picks one. The token exists. Its number travels in a small frame to the gateway, together with those of its neighbours in the batch. There it is turned into bytes, held back for a moment if a character is not complete, and sent to the client. All of that took a few hundredths of a second, and the next token is already on its way.",
    ),
    (
        "tell",
        [
            "the story of a drain",
            "a rolling upgrade from start to end",
            "how a worker is drained and replaced",
        ],
        "An upgrade is coming, and one of the workers has to go. Kubernetes sends it a signal, and the worker begins to drain. The first thing it does is to tell everybody: its next load report says that it takes no new work, and the router leaves it out of every choice from that moment on. A request that was already on its way is refused politely and is placed somewhere else without the client noticing. But the worker is still full of answers that are being written. It does not drop them. It keeps stepping, and one after the other the sequences reach their end tokens. Short answers are done in seconds. A few long ones would take more time than the grace period allows, so near the end the worker hands them over: the gateways get a goodbye for these requests and continue them on another worker, from the very token where they stopped. Now the batch is empty. The worker flushes its metrics and traces, closes its streams with a clear farewell so that nobody takes it for a crash, and exits with code zero. The new version starts in its place, loads the weights, runs a test prompt on itself and only then reports that it is ready. The router sends it a first request, then more. The next worker in line begins to drain, until all of them have been replaced, and no user has seen an error.",
    ),
    (
        "tell",
        [
            "the story of a long prompt",
            "what happens to a very long prompt",
            "how a long document is read",
        ],
        "A user pastes a whole book and asks one question about it. That makes a prompt of one hundred thousand tokens, and how it is treated decides whether all other users suffer. If the engine read it in one go, the GPU would be busy for many seconds, and every running answer would stand still. So the prompt is cut into chunks of some thousand tokens. After each chunk the scheduler looks around, lets the running sequences make their next tokens, and only then continues with the book. Better still, the book goes to a prefill worker, which writes no answers at all and can take its time without disturbing anybody. The memory is the next question. Each token needs its key and value in every layer, so the book fills several gigabytes. The decode worker promises that room before the reading starts, because it would be a waste to read a book and then have no place to put it. While the chunks are computed, their blocks already travel. After some seconds the first token appears, and from then on the answer flows as for any other request, only a little slower, since every step has to look back at the whole book. When the user asks a second question about the same text, the blocks are still in the prefix cache. Now only the new question has to be read, and the first token is there almost at once.",
    ),
    (
        "tell",
        [
            "the story of continuous batching",
            "how batching was reinvented for LLMs",
            "why static batching was given up",
        ],
        "In the first days of LLM serving, batches worked like a bus. The server waited until enough requests had come together, closed the doors and drove off. All of them were computed together, and the doors opened again when the last one was finished. That was fine for pictures, where each input takes the same time. But answers of language models differ: one user asks for a word, another for an essay. The one-word answer was done after a moment, and its seat stayed empty for the rest of the ride, while new passengers stood at the stop and waited. Then somebody noticed that the model is called again for every single token. Between two such steps nothing forces the batch to stay the same. So the bus became a moving walkway. After each step the scheduler looks who has finished and takes them out, and who is waiting and lets them in. No seat stays empty while somebody waits, and a short answer leaves as soon as it is done. The weights are still read once per step for everybody, which is where the gain of batching comes from, and the number of tokens per second went up many times. It also made new questions important: how to store so many growing caches without gaps, and how to let in a long prompt without stopping everyone. Paged memory and chunked prefill are the answers to those.",
    ),
    (
        "tell",
        ["the story of a trace", "how a slow request is found", "how to hunt down a slow request"],
        "A user complains that an answer took nine seconds to start. She sends the request id from the response header, and that is enough. Every hop has written its part of the story under this id. The first look goes to the access line of the gateway, which lists the stages with their times: authentication under a millisecond, tokenizing two, quota one, and then eight seconds for the pick. So neither the network nor the model was slow: the request was waiting in the queue of the router. The trace shows more. The span of the pick tells which workers were considered and why each of them was left out: two had no free blocks, one was draining, and one had room, but its queue of prompt tokens was long. A glance at the dashboard for that minute explains it. A customer had sent forty very long documents at once, all prefill workers were busy, and the number of queued tokens had jumped. The autoscaler reacted, but its new worker needed four minutes to load the weights. Now the cause is known and the remedies are simple: a limit on tokens per minute for that customer, a smaller share of the prefill pool for low priority, and one warm spare worker in the morning. Without the id, the stages and the reasons, all that would remain is a guess, and the next complaint would come on the following day.",
    ),
    (
        "tell",
        ["the story of a GPU", "a day in the life of a GPU", "what a GPU does all day"],
        "Before sunrise the GPU is idle and cool. Its memory holds the weights of the model, many gigabytes that were loaded once and will not change, and next to them a large pool of empty blocks. The first request of the day is a short question. To write one token the GPU reads all the weights from its memory, multiplies them with a single small vector and throws almost all of its power away, since the arithmetic units wait for the memory most of the time. By eight o'clock there are thirty users. The weights are still read only once per step, but now every number that comes in is used thirty times, and the work per second grows while the steps hardly get longer. At noon somebody sends a long document. Reading it is a different kind of work: thousands of tokens go through the layers together, the arithmetic units are finally busy, the fans spin up and the memory has a rest. In the afternoon the block pool is nearly full. Old blocks are evicted, a sequence is put aside for a while, and the scheduler lets nobody in until some answers have ended. In the evening the load falls. What the GPU remembers from the day is its cache: the system prompts that everybody uses are still there, and the first user of the night gets an answer without the GPU having to read them again.",
    ),
]
