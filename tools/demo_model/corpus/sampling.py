"""How the next token is chosen, and fields of a request."""

TOPICS: list[tuple] = [
    (
        "what",
        ["sampling", "token sampling"],
        "Sampling chooses the next token at random according to the model's probabilities, shaped by settings such as temperature and top-p.",
    ),
    (
        "what",
        ["temperature", "the temperature parameter"],
        "Temperature sharpens or flattens the probabilities before a token is chosen. Zero always takes the best token; higher values bring more variety.",
    ),
    (
        "simple",
        ["temperature"],
        "Temperature is like the mood of a storyteller: at zero he always says the most obvious word, at one he likes surprises.",
    ),
    (
        "what",
        ["top-p", "nucleus sampling"],
        "Top-p keeps only the most likely tokens whose probabilities add up to p, and chooses among them. It cuts off the unlikely tail.",
    ),
    (
        "what",
        ["top-k", "top-k sampling"],
        "Top-k keeps only the k most likely tokens and chooses among them, no matter how likely they are.",
    ),
    (
        "diff",
        ["top-p|top-k"],
        "Top-k keeps a fixed number of tokens; top-p keeps as many as are needed to reach a given probability, so it adapts to how sure the model is.",
    ),
    (
        "diff",
        ["temperature|top-p"],
        "Temperature changes how even the probabilities are; top-p removes the unlikely tail. The one shapes, the other cuts.",
    ),
    (
        "what",
        ["min-p", "min-p sampling"],
        "Min-p drops every token whose probability is below a given fraction of the best one.",
    ),
    (
        "what",
        ["greedy decoding", "greedy sampling"],
        "Greedy decoding always takes the most likely token. It is repeatable but can be dull or run in circles.",
    ),
    (
        "diff",
        ["greedy decoding|sampling"],
        "Greedy decoding always takes the best token; sampling draws one at random by probability and so gives variety.",
    ),
    (
        "what",
        ["a seed", "the seed parameter"],
        "A seed fixes the random numbers of sampling. Same seed, prompt and settings give the same answer, as long as the arithmetic is the same.",
    ),
    (
        "why",
        [
            "does the same prompt give different answers|the same prompt gives different answers",
            "are answers not deterministic|answers are not deterministic",
        ],
        "With a temperature above zero tokens are drawn at random. Even at zero, other requests in the batch can change the order of additions and so the last digits.",
    ),
    (
        "what",
        ["counter-based randomness", "counter-based sampling"],
        "Counter-based randomness computes each random number from seed and position alone. A request that moves to another worker therefore continues with the same tokens.",
    ),
    (
        "what",
        ["max_tokens", "the max tokens parameter"],
        "Max tokens limits the length of the answer. When it is reached the stream ends with finish reason length.",
    ),
    (
        "do",
        ["limit the length of an answer", "get shorter answers", "make answers shorter"],
        "Set max tokens as a hard limit, use a stop string, and ask for a short answer in the prompt so that it does not end in the middle of a sentence.",
    ),
    (
        "what",
        ["the repetition penalty", "a frequency penalty", "presence penalty"],
        "A penalty lowers the scores of tokens that were already used, so that the model repeats itself less.",
    ),
    (
        "what",
        ["logprobs", "log probabilities"],
        "Logprobs are the logarithms of the probabilities of the chosen tokens. They show how sure the model was.",
    ),
    (
        "what",
        ["logits", "a logit"],
        "Logits are the raw scores that the model gives to all tokens. Softmax turns them into probabilities.",
    ),
    (
        "what",
        ["softmax"],
        "Softmax turns a list of scores into probabilities that are positive and add up to one.",
    ),
    (
        "what",
        ["structured output", "JSON mode", "guided decoding"],
        "Structured output forces the answer into a grammar or JSON schema: at each step the tokens that would break it are masked out.",
    ),
    (
        "what",
        ["a tool call", "function calling"],
        "In a tool call the model answers with the name of a function and its arguments. The client runs it and sends the result back.",
    ),
    (
        "what",
        ["beam search"],
        "Beam search keeps several partial answers at once and continues the best ones. It is rarely used for chat, because it is costly and dull.",
    ),
    (
        "what",
        ["the stream parameter", "stream=true"],
        "With stream set to true the answer comes as events while it is written; otherwise it comes in one piece at the end.",
    ),
    (
        "what",
        ["the n parameter", "multiple choices"],
        "The n parameter asks for several answers to one prompt. The prompt is read once, and each answer becomes a sequence of its own.",
    ),
    (
        "what",
        ["a hallucination", "hallucinations"],
        "A hallucination is a fluent statement that is false. A language model predicts likely text, and likely is not the same as true.",
    ),
    (
        "what",
        ["RAG", "retrieval augmented generation"],
        "RAG looks up fitting documents first and puts them into the prompt, so that the model can answer from them. It makes prompts long.",
    ),
    (
        "what",
        ["an agent", "agentic workloads"],
        "An agent calls the model in a loop with tools. Its prompts grow turn by turn and share long prefixes, so prefix caching helps a lot.",
    ),
    (
        "what",
        ["fine-tuning"],
        "Fine-tuning continues the training of a model on own examples, so that it learns a style or a task.",
    ),
    (
        "what",
        ["LoRA", "a LoRA adapter", "low-rank adaptation"],
        "LoRA adds small matrices to a fixed model instead of changing all weights. One worker can serve many such adapters on the same base.",
    ),
    (
        "how",
        [
            "are many LoRA adapters served|many LoRA adapters are served",
            "does multi-LoRA serving work|multi-LoRA serving works",
        ],
        "The base weights are loaded once. Each sequence in the batch names its adapter, and the small extra matrices are applied to it in a grouped kernel.",
    ),
    (
        "what",
        ["quantisation", "quantization", "weight quantisation"],
        "Quantisation stores numbers with fewer bits, for example weights in eight or four instead of sixteen. It saves memory and bandwidth and costs a little accuracy.",
    ),
    (
        "simple",
        ["quantisation", "quantization"],
        "Quantisation is like rounding prices to full euros: the sums are a little off, but the list is shorter and read much faster.",
    ),
    (
        "why",
        [
            "does quantisation make decode faster|quantisation makes decode faster",
            "does quantization speed up decode|quantization speeds up decode",
        ],
        "Decode is limited by reading the weights. Weights with half the bits are read in half the time, so each step gets shorter.",
    ),
    (
        "what",
        ["FP8"],
        "FP8 is a floating point format with eight bits. Recent GPUs compute with it twice as fast as with sixteen bits.",
    ),
    (
        "what",
        ["bf16", "bfloat16"],
        "Bfloat16 is a format with sixteen bits that keeps the range of 32-bit floats and gives up digits. Most models are stored in it.",
    ),
    (
        "what",
        ["AWQ", "GPTQ", "INT4"],
        "These are four-bit weight formats: AWQ and GPTQ choose the rounding so that the loss is small, and INT4 is the plain number format behind them.",
    ),
    (
        "what",
        ["safetensors"],
        "Safetensors is a file format for weights that holds only numbers and names. Unlike pickle it cannot run code when it is loaded.",
    ),
    (
        "why",
        [
            "avoid pickle for weights|pickle is avoided for weights",
            "is pickle dangerous|pickle is dangerous",
        ],
        "Loading a pickle file can run any code that somebody put into it. Safetensors contains plain data only.",
    ),
]
