"""The gRPC edge of the tokenizer service: wire in, wire out, spans; no decisions."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.runtime.calls.call_server import CallServer, IncomingCall
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import translate_failures
from baton.runtime.shared_stream import ServerFrameStream
from baton.wire.call_methods import ENCODE
from baton.wire.failures import BatonError
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer import instruments
from services.tokenizer.encoder import Encoder
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.served_model import ServedModel

Context = grpc.aio.ServicerContext[Any, Any]


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServicer):
    """The tokenizer's calls over an Encoder and a ModelTable."""

    def __init__(self, encoder: Encoder, models: ModelTable, leaving: Cutoff) -> None:
        self._encoder = encoder
        self._models = models
        self._calls = CallServer({ENCODE: self._encode}, leaving)

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Context) -> None:
        await self._calls.serve(ServerFrameStream(context))

    async def _encode(
        self, request: tokenizer_pb2.EncodeRequest, call: IncomingCall
    ) -> tokenizer_pb2.EncodeResponse:
        with call.span("tokenizer.encode") as span:
            try:
                response = await self._encoder.encode(request)
            except BatonError as error:
                instruments.TOKENIZER_FAILED_PROMPTS.labels(error.reason).inc()
                raise
            span.set("baton.num_prompt_tokens", len(response.token_ids) // TOKEN_BYTES)
            self._observe(request.model_fp, response)
            return response

    def _observe(self, model_fp: str, response: tokenizer_pb2.EncodeResponse) -> None:
        name = self._models.get(model_fp).folder.name
        for stage in response.stages:
            seconds = stage.duration_us / 1e6
            instruments.TOKENIZER_STAGE_SECONDS.labels(name, stage.name).observe(seconds)

    @translate_failures
    async def GetArtifact(
        self, request: tokenizer_pb2.GetArtifactRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetArtifactResponse]:
        artifact = (await self._models.find(request.model_fp)).artifact
        yield tokenizer_pb2.GetArtifactResponse(
            header=tokenizer_pb2.ArtifactHeader(
                digest=artifact.digest, num_bytes=len(artifact.data)
            )
        )
        for chunk in artifact.chunks():
            yield tokenizer_pb2.GetArtifactResponse(data=chunk)

    @translate_failures
    async def ListModels(
        self, request: tokenizer_pb2.ListModelsRequest, context: Context
    ) -> tokenizer_pb2.ListModelsResponse:
        models = [_to_wire(model) for model in self._models.all()]
        return tokenizer_pb2.ListModelsResponse(models=models)


def _to_wire(model: ServedModel) -> tokenizer_pb2.TokenizerModel:
    return tokenizer_pb2.TokenizerModel(
        model_fp=model.folder.fingerprint,
        name=model.folder.name,
        revision=model.folder.revision,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        has_chat_template=model.renderer is not None,
    )
