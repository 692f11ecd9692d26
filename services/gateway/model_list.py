"""/v1/models: the public names that a tenant may use, each with its card.

Beyond OpenAI's fields: vLLM's `max_model_len` (the tokens that prompt and answer may have
together), what the model can be asked for, and the syntaxes in which it writes calls and reasoning.
These are in the model's files, and left out while no tokenizer gives them. The engines that compute
it, and the parameters that those refuse, are what its workers say; what they all guarantee is what
the suite of engines has found. A LoRA adapter names the model
that it is computed with as its `parent`, as vLLM has it.
"""

from collections.abc import Iterable, Set
from typing import Any

import msgspec

from baton.wire.failures import BatonError, ModelNotFound, did_you_mean, quoted
from baton.wire.guarantees import guarantees_of
from services.gateway.routing.models import ModelDirectory, ServedModel
from services.gateway.text.detokenize import MAX_MODELS, Artifacts, TextModel

# Workers register what they do not serve: parameters, and this one endpoint.
_ENDPOINTS = frozenset(("embeddings",))


class ModelCards:
    """The cards of all models, for tenants that may use some of them."""

    def __init__(
        self, directory: ModelDirectory, artifacts: Artifacts, created_unix_s: int
    ) -> None:
        self._directory = directory
        self._artifacts = artifacts
        self._created_unix_s = created_unix_s

    async def all(self, allowed: Iterable[str]) -> bytes:
        """The body of the list. Raises nothing."""
        rooms = self._directory.listed(allowed)
        # More files than are kept are not fetched for a list.
        knows_files = len(rooms) <= MAX_MODELS
        data = [await self._card(name, room, knows_files) for name, room in rooms.items()]
        return msgspec.json.encode({"object": "list", "data": data})

    async def one(self, name: str, allowed: Iterable[str]) -> bytes:
        """The body of one card. Raises ModelNotFound."""
        rooms = self._directory.listed(allowed)
        if name not in rooms:
            hint = did_you_mean(name, rooms)
            raise ModelNotFound(f"model: {quoted(name)} does not exist{hint}", param="model")
        return msgspec.json.encode(await self._card(name, rooms[name], knows_files=True))

    async def _card(self, name: str, max_model_len: int, knows_files: bool) -> dict[str, Any]:
        card = {
            "id": name,
            "object": "model",
            "created": self._created_unix_s,
            "owned_by": "baton",
            "max_model_len": max_model_len,
        }
        models = self._directory.ready_behind(name)
        if not models:
            return card
        engines = sorted({engine for model in models for engine in model.engines})
        card["engines"] = engines
        if models[0].base:
            card["parent"] = models[0].base
        if known := guarantees_of(engines):
            card["guarantees"] = known
        lacking = frozenset().union(*(model.unsupported for model in models))
        card["unsupported_parameters"] = sorted(lacking - _ENDPOINTS)
        return {**card, **await self._abilities(models)} if knows_files else card

    async def _abilities(self, models: list[ServedModel]) -> dict[str, Any]:
        """The abilities that all models behind a name have."""
        try:
            found = [
                _abilities_of(await self._artifacts.text_model(model.model_fp), model.unsupported)
                for model in models
            ]
        except BatonError:
            return {}
        syntaxes = {
            key: found[0][key] if len({each[key] for each in found}) == 1 else None
            for key in ("tool_syntax", "reasoning_syntax")
        }
        capabilities = {
            key: all(each["capabilities"][key] for each in found)
            for key in found[0]["capabilities"]
        }
        return {"capabilities": capabilities, **syntaxes}


def _abilities_of(model: TextModel, unsupported: Set[str]) -> dict[str, Any]:
    calls, reasoning, writes = model.call_syntax, model.reasoning_syntax, model.pooling is None
    return {
        "capabilities": {
            "chat": writes and model.has_chat_template,
            "completions": writes,
            "tools": writes and model.has_chat_template and calls is not None,
            "reasoning": writes and reasoning is not None,
            "structured_output": writes and "response_format" not in unsupported,
            "logprobs": writes,
            "embeddings": model.pooling is not None and not model.pooling.is_score,
            "rerank": model.pooling is not None and model.pooling.is_score,
        },
        "tool_syntax": None if calls is None else calls.name,
        "reasoning_syntax": None if reasoning is None else reasoning.name,
    }
