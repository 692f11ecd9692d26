"""The one table of caps: every numeric, text and list field of a request has its type from here.

A value beyond its cap is refused with the field, the value and the limit. The caps are OpenAI's
where OpenAI states one.
"""

from typing import Annotated, Any

from msgspec import Meta

MAX_JSON_DEPTH = 64
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_STOP_STRINGS = 4
MAX_CHOICES = 128

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
MaxTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NumChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]

StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopStrings = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=64)]
PromptTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2_000_000)]
Parts = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_PARTS)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
