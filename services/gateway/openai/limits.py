"""The one table of caps: every numeric, text and list field of a request has its type from here.

A value beyond its cap is refused with the field, the value and the limit. The caps are OpenAI's
where OpenAI states one.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from baton.wire.limits import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_LENGTH_PENALTY,
    MAX_LOGPROBS,
)

MAX_JSON_DEPTH = 64
MAX_MESSAGES = 4096
MAX_PARTS = 256
# Of one legacy completion, and the choices of all of them together.
MAX_PROMPTS = 256
MAX_CHOICES_OF_LIST = 1024
# Of one request for embeddings.
MAX_INPUTS = 2048
MAX_TEMPLATE_KWARGS_BYTES = 64 * 1024
# Of the text of one /detokenize: eight times the default cap of a body.
MAX_TOLD_CHARS = 64 * 1024 * 1024
# OpenAI takes 4.
MAX_STOP_STRINGS = 32

# 8 MiB is also the default cap of the whole body.
Text = Annotated[str, Meta(max_length=8 * 1024 * 1024)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Label = Annotated[str, Meta(max_length=64)]
UserId = Annotated[str, Meta(max_length=512)]
SafetyId = Annotated[str, Meta(max_length=128)]
CacheHint = Annotated[str, Meta(max_length=512)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=256)]

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
# -1 and 0 both mean off, as other servers have it.
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
# The exponent of a hypothesis's length in a beam search.
LengthPenalty = Annotated[float, Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]
MaxTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
MaxTokensOrNone = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MinTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# OpenAI takes 5 in legacy completions.
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
NumChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Dimensions = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]

StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopStrings = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=64)]
LogitBias = Annotated[
    dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=MAX_BIASES),
]
# The form that an answer must have.
Regex = Annotated[str, Meta(min_length=1, max_length=8 * 1024)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=64 * 1024)]
SchemaText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
AnswerChoices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(min_length=1, max_length=4096)
]
Includes = Annotated[list[Label], Meta(max_length=16)]
PromptTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2_000_000)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
Parts = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_PARTS)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
