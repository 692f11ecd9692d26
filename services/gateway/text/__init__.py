"""From token ids to text: detokenization, stop strings, logprobs."""
