"""The endpoints of models of all APIs that the gateway speaks."""

from services.gateway.anthropic.errors import ANTHROPIC
from services.gateway.anthropic.message_answer import MessageAnswer, MessageTokensAnswer
from services.gateway.anthropic.messages import parse, parse_to_count
from services.gateway.openai import endpoints
from services.gateway.openai.endpoints import Endpoint
from services.gateway.vectors import embeddings, rerank

ENDPOINTS: dict[str, Endpoint] = {
    **endpoints.ENDPOINTS,
    "/v1/messages": Endpoint("messages", parse, MessageAnswer, dialect=ANTHROPIC),
    "/v1/messages/count_tokens": Endpoint(
        "messages.count_tokens",
        parse_to_count,
        MessageTokensAnswer,
        generates=False,
        dialect=ANTHROPIC,
    ),
    "/v1/embeddings": Endpoint("embeddings", embeddings.parse, embeddings.EmbeddingsAnswer),
    "/v1/rerank": Endpoint("rerank", rerank.parse_rerank, rerank.RerankAnswer),
    "/v2/rerank": Endpoint("rerank", rerank.parse_rerank, rerank.RerankAnswer),
    "/v1/score": Endpoint("score", rerank.parse_score, rerank.ScoreAnswer),
}
