"""Public names, aliases and what is ready."""

import random
from collections import Counter
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import ModelNotFound, Unavailable
from services.gateway.routing.alias_file import read_aliases
from services.gateway.routing.models import (
    COMES_BACK_S,
    FORGET_NAME_S,
    AliasError,
    AliasTarget,
    ModelDirectory,
    parse_aliases,
)
from tests.unit.gateway.fakes import model_state


def directory(*entries: str, clock: VirtualClock | None = None) -> ModelDirectory:
    return ModelDirectory(parse_aliases(entries), random.Random(1), clock or VirtualClock())


def test_alias_entries() -> None:
    assert parse_aliases(["gpt-4o=demo", "b=org/m:0.9", "b = org/n:0.1", "c=m:latest"]) == {
        "gpt-4o": [AliasTarget("demo", 1.0)],
        "b": [AliasTarget("org/m", 0.9), AliasTarget("org/n", 0.1)],
        "c": [AliasTarget("m:latest", 1.0)],
    }


@pytest.mark.parametrize("entry", ["x", "x=", "=y", "x=y:0"])
def test_malformed_alias_entries_are_quoted(entry: str) -> None:
    with pytest.raises(AliasError, match=entry.replace("=", "[=]")):
        parse_aliases([entry])


def test_alias_file_adds_to_the_settings(tmp_path) -> None:
    path = tmp_path / "aliases"
    path.write_text("# canary\ngpt-4o=demo:9\n\ngpt-4o=next:1  # new\n")
    aliases = read_aliases(["a=b"], path)
    assert set(aliases) == {"a", "gpt-4o"}
    assert [target.model for target in aliases["gpt-4o"]] == ["demo", "next"]


def test_served_names_and_aliases_resolve_to_the_served_model() -> None:
    names = directory("gpt-4o=demo")
    names.update([model_state()])
    assert names.resolve("demo", []).name == "demo"
    assert names.resolve("gpt-4o", []).name == "demo"
    assert list(names.listed([])) == ["demo", "gpt-4o"]


def test_a_name_with_one_model_behind_it_is_resolved_without_a_draw() -> None:
    rng = random.Random(1)
    names = ModelDirectory(parse_aliases(["gpt-4o=demo"]), rng, VirtualClock())
    names.update([model_state()])
    before = rng.getstate()
    assert names.resolve("gpt-4o", []).name == "demo"
    assert rng.getstate() == before


def test_unknown_and_not_allowed_get_the_same_answer() -> None:
    names = directory("gpt-4o=demo")
    names.update([model_state()])
    with pytest.raises(ModelNotFound) as unknown:
        names.resolve("secret", ["gpt-4o"])
    with pytest.raises(ModelNotFound) as forbidden:
        names.resolve("demo", ["gpt-4o"])
    assert unknown.value.message.replace("secret", "demo") == forbidden.value.message
    assert list(names.listed(["gpt-4o"])) == ["gpt-4o"]
    assert names.resolve("gpt-4o", ["gpt-4o"]).name == "demo"


def test_a_model_that_lost_its_last_worker_a_moment_ago_is_left_to_the_router() -> None:
    """Which waits for one: a killed worker comes back within seconds."""
    clock = VirtualClock()
    names = directory("gpt-4o=demo", clock=clock)
    names.update([model_state()])
    for _ in range(2):
        clock.advance(COMES_BACK_S / 2)
        names.update([model_state(ready=False)])
        assert names.resolve("demo", []).model_fp == names.resolve("gpt-4o", []).model_fp
        assert list(names.listed([])) == []
    clock.advance(1)
    with pytest.raises(Unavailable):
        names.resolve("demo", [])
    names.update([model_state(), model_state("other", "f2", ready=False)])
    with pytest.raises(Unavailable):
        names.resolve("other", [])


def test_a_known_model_without_a_ready_worker_is_no_worker() -> None:
    clock = VirtualClock()
    names = directory("gpt-4o=demo", "later=unseen", clock=clock)
    names.update([model_state()])
    names.update([])
    for name in ("demo", "gpt-4o", "later"):
        with pytest.raises(Unavailable) as caught:
            names.resolve(name, [])
        assert caught.value.reason == "no_worker"
    clock.advance(COMES_BACK_S + 1)
    names.update([model_state(ready=False)])
    with pytest.raises(Unavailable):
        names.resolve("demo", [])
    assert list(names.listed([])) == []


def test_a_name_that_no_router_has_named_for_an_hour_is_unknown_again() -> None:
    clock = VirtualClock()
    names = directory(clock=clock)
    names.update([model_state("gone", "f1"), model_state("kept", "f2")])
    clock.advance(FORGET_NAME_S)
    names.update([model_state("kept", "f2", ready=False)])
    with pytest.raises(Unavailable):
        names.resolve("gone", [])
    clock.advance(1)
    names.update([model_state("kept", "f2", ready=False)])
    with pytest.raises(ModelNotFound):
        names.resolve("gone", [])
    with pytest.raises(Unavailable):
        names.resolve("kept", [])


def test_before_any_model_is_known_no_name_is_called_unknown() -> None:
    names = directory()
    with pytest.raises(Unavailable) as caught:
        names.resolve("demo", [])
    assert caught.value.reason == "no_worker"
    with pytest.raises(ModelNotFound):
        names.resolve("demo", ["another"])


def test_weights_split_the_requests() -> None:
    names = directory("ab=a:9", "ab=b:1")
    names.update([model_state("a", "f1"), model_state("b", "f2")])
    counts = Counter(names.resolve("ab", []).name for _ in range(1000))
    assert 850 < counts["a"] < 950
    names.update([model_state("b", "f2")])
    assert names.resolve("ab", []).name == "b"


def test_a_rolling_upgrade_serves_both_revisions_of_a_name() -> None:
    names = directory()
    names.update([model_state("a", "f1"), model_state("a", "f2")])
    assert {names.resolve("a", []).model_fp for _ in range(50)} == {"f1", "f2"}


def test_a_name_is_listed_with_the_room_that_every_target_has() -> None:
    names = directory("ab=a", "ab=b")
    names.update([model_state("a", "f1"), model_state("b", "f2", max_model_len=64)])
    assert names.listed([]) == {"a": model_state().max_model_len, "ab": 64, "b": 64}


def serving(*adapters: tuple[str, str], ready: bool = True, name: str = "demo") -> Any:
    state = model_state(name, model_fp=f"fp-{name}", ready=ready)
    for adapter, fingerprint in adapters:
        state.workers[0].adapters.add(name=adapter, fingerprint=fingerprint)
    return state


def test_an_adapter_is_a_model_of_its_own_with_a_base() -> None:
    names = directory("verse=poems")
    names.update([serving(("poems", "a1"), ("code", "a2"))])
    poems = names.resolve("verse", [])
    assert (poems.name, poems.base, poems.adapter) == ("poems", "demo", "a1")
    assert poems.model_fp == names.resolve("demo", []).model_fp
    assert names.resolve("demo", []).adapter == ""
    assert list(names.listed([])) == ["code", "demo", "poems", "verse"]
    with pytest.raises(ModelNotFound):
        names.resolve("poems", ["demo"])


def test_answers_of_a_model_and_of_each_adapter_have_fingerprints_of_their_own() -> None:
    names = directory()
    names.update([serving(("poems", "a1"), ("code", "b2"))])
    found = {names.resolve(name, []).system_fingerprint for name in ("demo", "poems", "code")}
    assert len(found) == 3
    assert names.resolve("demo", []).system_fingerprint == "fp_fp-demo"


def test_an_adapter_without_a_ready_worker_is_known_and_away() -> None:
    names = directory()
    names.update([serving(("poems", "a1"), ready=False)])
    with pytest.raises(Unavailable):
        names.resolve("poems", [])


def test_an_adapter_does_not_take_the_name_of_a_model() -> None:
    names = directory()
    names.update([serving(("other", "a1")), serving(name="other")])
    assert names.resolve("other", []).model_fp == "fp-other"
