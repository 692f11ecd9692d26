"""The calls of `baton size` that pages show, with configurations in the shapes that they name."""

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.cli.__main__ import main
from loadtest import scenario
from tests.kit.documented import ROOT, Statement, blocks, statements

SIZES = [
    each
    for each in statements()
    if each.words[:2] in {("baton", "size"), (".venv/bin/baton", "size")}
]
# The files themselves belong to others.
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN_32B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936,
    "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "head_dim": 128,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 40960,
    "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip
CONFIGS = {
    "config.json": LLAMA_8B,
    "llama-3.1-8b/config.json": LLAMA_8B,
    "qwen3-32b/config.json": QWEN_32B,
    "llama-3.3-70b/config.json": LLAMA_70B,
}
RECIPES = [each for each in SIZES if each.page.startswith("docs/recipes/")]
GIB = 2**30


@pytest.fixture
def sized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], str]:
    """What a call prints; it has to succeed."""
    for name, config in CONFIGS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)

    def call(words: Sequence[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["baton", *words[1:]])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert ended.value.code == 0, told.out + told.err
        return told.out

    return call


@pytest.mark.parametrize("statement", SIZES, ids=lambda each: f"{each.page}: {each.text[:40]}")
def test_what_a_page_asks_to_be_sized_fits(
    statement: Statement, sized: Callable[[Sequence[str]], str]
) -> None:
    assert "Memory of a worker" in sized(statement.words)


def section_of(statement: Statement) -> str:
    """The part of a page, from heading to heading, in which a command stands."""
    parts = (ROOT / statement.page).read_text().split("\n## ")
    (found,) = [part for part in parts if statement.text in part]
    return found


def option(statement: Statement, name: str, otherwise: float = 0) -> float:
    words = statement.words
    return float(words[words.index(name) + 1]) if name in words else otherwise


def memory_shown(plan: dict[str, Any], num_request_tokens: float) -> list[str]:
    """Figures of a worker's memory as the tables write them."""
    return [
        f"{plan['weight_bytes'] / GIB:.1f} GiB",
        f"{kv_bytes(plan) / GIB:.1f} GiB",
        f"{round(plan['num_kv_tokens'], -3):,} tokens or "
        f"{int(plan['num_kv_tokens'] // num_request_tokens)} such requests",
    ]


def kv_bytes(plan: dict[str, Any]) -> int:
    tokens: int = plan["num_kv_tokens"]
    each: int = plan["kv_bytes_per_token"]
    return tokens * each


def rates_shown(plan: dict[str, Any], statement: Statement) -> list[str]:
    """Figures that follow from the device's speed."""
    num_computed = option(statement, "--prompt") * (1 - option(statement, "--cached"))
    prompts = plan["prefill_requests_per_s"] * num_computed
    outputs = plan["decode_requests_per_s"] * option(statement, "--output")
    shown = [f"{plan['carried_per_s']:.1f} requests/s", f"{round(prompts, -2):,.0f}"]
    if not plan["num_prefill"]:
        return [*shown, f"{round(outputs, -2):,.0f} |", f"batch {plan['max_batch']} |"]
    blocks = plan["blocks_bytes_per_s"] * 8 / 1e9
    uncached = plan["blocks_uncached_bytes_per_s"] * 8 / 1e9
    return [
        *shown,
        f"{round(outputs, -2):,.0f} with {plan['max_batch']} sequences",
        f"{plan['ttft_s'] * 1e3:.0f} ms in the mean, {plan['itl_s'] * 1e3:.1f} ms",
        f"{blocks:.1f} Gbit/s in all",
        f"{uncached / plan['num_decode']:.1f} ",
    ]


@pytest.mark.parametrize("statement", RECIPES, ids=lambda each: each.text[11:60])
def test_a_recipe_has_the_figures_that_its_command_prints(
    statement: Statement, sized: Callable[[Sequence[str]], str]
) -> None:
    plan = json.loads(sized([*statement.words, "--json"]))
    section = " ".join(section_of(statement).split())
    num_tokens = option(statement, "--prompt") + option(statement, "--output")
    expected = memory_shown(plan, num_tokens)
    if plan["num_prefill"]:
        needed = plan["num_needed"]
        expected.append(
            f"{plan['num_prefill']} prefill and {plan['num_decode']} decode, of which the traffic "
            f"needs {needed['prefill']} and {needed['decode']}"
        )
    # Rates of a whole GPU say nothing of a slice.
    if "--gib" not in statement.words:
        expected += rates_shown(plan, statement)
    assert [figure for figure in expected if figure not in section] == []


def test_a_recipe_says_what_smaller_workers_would_have(
    sized: Callable[[Sequence[str]], str],
) -> None:
    qwen, llama = (
        next(each for each in RECIPES if f"{name}/config.json" in each.words)
        for name in ("qwen3-32b", "llama-3.3-70b")
    )
    words = [*qwen.words]
    for name in ("--engine", "--tp", "--rdma"):
        del words[words.index(name) : words.index(name) + 2]
    alone = json.loads(sized([*words, "--json"]))
    section = " ".join(section_of(qwen).split())
    assert f"{round(alone['num_kv_tokens'], -3):,} tokens of KV cache are left" in section
    assert f"a batch of {alone['max_batch']}," in section
    assert f"16 GPUs carry {alone['carried_per_s']:.1f} requests/s" in section
    pair = ["2" if word == "4" else word for word in llama.words]
    for name in ("--max-model-len", "--max-batch"):
        del pair[pair.index(name) : pair.index(name) + 2]
    halves = json.loads(sized([*pair, "--json"]))
    told = f"{round(halves['num_kv_tokens'], -3):,} tokens of KV cache"
    assert told in " ".join(section_of(llama).split())


@pytest.mark.parametrize(
    ("profile", "model"),
    [("qwen3-32b", "qwen3-32b"), ("llama-70b", "llama-3.3-70b"), ("mig", "llama-3.1-8b")],
)
def test_a_profile_has_the_pools_of_its_recipe(
    profile: str, model: str, sized: Callable[[Sequence[str]], str]
) -> None:
    statement = next(
        each
        for each in RECIPES
        if f"{model}/config.json" in each.words and (profile != "mig" or "--gib" in each.words)
    )
    plan = json.loads(sized([*statement.words, "--json"]))
    values = yaml.safe_load((ROOT / f"deploy/helm/baton/ci/{profile}-values.yaml").read_text())
    (served,) = filter(None, values["models"].values())
    pools = values["poolDefaults"]
    replicas = {role: served.get(role, {}).get("replicas", 1) for role in ("prefill", "decode")}
    assert replicas == {"prefill": plan["num_prefill"], "decode": plan["num_decode"]}
    assert served["kvBytesPerToken"] == plan["kv_bytes_per_token"]
    assert pools["settings"].get("max_batch", 64) == plan["max_batch"]
    assert pools["settings"]["max_model_len"] == plan["max_model_len"]
    num_ranks = pools.get("parallelism", {}).get("tensor", 1)
    assert pools["activationGiB"] >= plan["activation_bytes"] / num_ranks / GIB
    assert served["sizeGiB"] == pytest.approx(plan["weight_bytes"] / GIB, rel=0.01)


def test_the_load_test_of_a_recipe_is_a_scenario_of_its_shape(tmp_path: Path) -> None:
    (text,) = blocks("docs/recipes/qwen3-32b.md", "toml")
    path = tmp_path / "recipe.toml"
    path.write_text(textwrap.dedent(text))
    (kind,) = scenario.load(str(path)).kinds.values()
    (qwen,) = [each for each in RECIPES if "qwen3-32b/config.json" in each.words]
    num_prompt = kind.first_turn_tokens - kind.output_tokens
    assert num_prompt == option(qwen, "--prompt")
    assert kind.output_tokens == option(qwen, "--output")
    assert kind.system_tokens == num_prompt * option(qwen, "--cached")
