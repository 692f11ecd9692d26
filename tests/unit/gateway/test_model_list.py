"""The cards of models: their room, what they can be asked for, and their syntaxes."""

import asyncio
import json
from typing import Any

import pytest

from baton.wire.failures import ModelNotFound, Unavailable
from baton.wire.pooling import Pooling
from services.gateway.routing.models import parse_aliases
from tests.unit.gateway.fakes import Fleet, artifact, model_state, simulate


async def cards(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in json.loads(await fleet.gateway.cards.all([]))["data"]}


def test_a_card_names_syntaxes_and_abilities() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(tool_syntax="hermes", reasoning_syntax="think")

    async def scenario(fleet: Fleet) -> None:
        card = json.loads(await fleet.gateway.cards.one("demo", []))
        assert card == (await cards(fleet))["demo"]
        assert (card["object"], card["max_model_len"]) == ("model", 2048)
        assert (card["tool_syntax"], card["reasoning_syntax"]) == ("hermes", "think")
        lacking = [key for key, has in card["capabilities"].items() if not has]
        assert lacking == ["embeddings", "rerank"]
        with pytest.raises(ModelNotFound, match="demi"):
            await fleet.gateway.cards.one("demi", [])

    simulate(scenario, prepare=prepare)


def test_the_card_of_an_embedding_model_promises_vectors_and_no_text() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(pooling=Pooling("last", 2))

    async def scenario(fleet: Fleet) -> None:
        card = json.loads(await fleet.gateway.cards.one("demo", []))
        assert [key for key, has in card["capabilities"].items() if has] == ["embeddings"]

    simulate(scenario, prepare=prepare)


def test_a_card_names_engines_and_what_they_refuse() -> None:
    def prepare(fleet: Fleet) -> None:
        other = model_state("other", "e" * 32)
        other.engines[:] = ["vllm 0.32.0"]
        other.unsupported[:] = ["embeddings", "response_format", "use_beam_search"]
        fleet.router.models[0].engines[:] = ["baton"]
        fleet.router.models.append(other)

    async def scenario(fleet: Fleet) -> None:
        found = await cards(fleet)
        failover = "greedy_answer_after_failover"
        levels = {name: card["guarantees"][failover] for name, card in found.items()}
        assert levels == {"demo": "yes", "other": "expected", "both": "expected"}
        refused = ["response_format", "use_beam_search"]
        told = {
            name: (card["engines"], card["unsupported_parameters"]) for name, card in found.items()
        }
        assert told == {
            "demo": (["baton"], []),
            "other": (["vllm 0.32.0"], refused),
            "both": (["baton", "vllm 0.32.0"], refused),
        }
        able = {name: card["capabilities"]["structured_output"] for name, card in found.items()}
        assert able == {"demo": True, "other": False, "both": False}

    simulate(scenario, aliases=parse_aliases(["both=demo", "both=other"]), prepare=prepare)


def test_a_value_on_which_the_models_of_an_alias_differ_is_null() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.router.models.append(model_state("other", "e" * 32))

    async def scenario(fleet: Fleet) -> None:
        await fleet.gateway.cards.one("demo", [])
        fleet.tokenizer.data = artifact(tool_syntax="")
        await asyncio.sleep(0.2)
        found = await cards(fleet)
        assert [found[name]["tool_syntax"] for name in ("demo", "other", "both")] == [
            "generic",
            None,
            None,
        ]
        assert found["demo"]["capabilities"]["tools"]
        assert not found["both"]["capabilities"]["tools"]

    simulate(scenario, aliases=parse_aliases(["both=demo", "both=other"]), prepare=prepare)


def test_a_list_without_a_tokenizer_has_names_and_rooms() -> None:
    async def scenario(fleet: Fleet) -> None:
        async def lost(model_fp: str) -> bytes:
            raise Unavailable("no tokenizer")

        fleet.tokenizer.artifact = lost  # type: ignore[method-assign]
        card = (await cards(fleet))["demo"]
        assert card["max_model_len"] == 2048
        assert "capabilities" not in card

    simulate(scenario)


def test_the_card_of_an_adapter_names_its_base() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.router.models[0].workers[0].adapters.add(name="poems", fingerprint="a1")

    async def scenario(fleet: Fleet) -> None:
        found = await cards(fleet)
        assert found["poems"]["parent"] == "demo"
        assert found["poems"]["capabilities"] == found["demo"]["capabilities"]
        assert "parent" not in found["demo"]

    simulate(scenario, prepare=prepare)
