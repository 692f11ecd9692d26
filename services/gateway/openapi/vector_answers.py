"""The forms of answers that are vectors or scores, for the description of the API."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class PromptUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct):
    """Numbers, or base64 of their float32 bytes, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class RankedText(Struct):
    text: str


class RankedDocument(Struct):
    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Ranking(Struct):
    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage


class Score(Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
