"""Recorded traces as they are read: times, lengths, and which prompts share blocks."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from bench.router.traces import BLOCK_SIZE, Trace, load_traces

CONVERSATION = [
    {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1600, "output_length": 8, "hash_ids": [0, 1, 5, 6]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,1200,10
2023-11-16 18:17:05.4799600,600,8
"""


def session(name: str, ids: list[list[int]]) -> str:
    requests = [
        {"t": 10.0 * n, "type": "s", "in": 64 * len(each), "out": 5, "hash_ids": each}
        for n, each in enumerate(ids)
    ]
    return json.dumps({"id": name, "block_size": 64, "requests": requests}) + "\n"


@pytest.fixture
def traces(tmp_path: Path) -> dict[str, Trace]:
    lines = "\n".join(map(json.dumps, CONVERSATION))
    (tmp_path / "mooncake_conversation_1.jsonl").write_text(lines)
    (tmp_path / "azure2023_code_first.csv").write_text(AZURE)
    with gzip.open(tmp_path / "weka_agentic_A.jsonl.gz", "wt") as file:
        turns = [list(range(8)), list(range(16)), [0, 1, 2, 3, 99, 5, 6, 7]]
        file.write(session("one", turns) + session("two", turns[:1]))
    return {each.name: each for each in load_traces(tmp_path, Random(1), 1e9)}


def test_only_the_traces_that_lie_there_are_read(traces) -> None:
    assert list(traces) == ["conversation", "agents", "azure code"]


def test_the_prompts_of_a_conversation_share_the_blocks_of_equal_ids(traces) -> None:
    first, second = traces["conversation"].arrivals
    assert (first.num_prompt_tokens, first.num_output_tokens) == (1100, 7)
    assert len(first.hashes) == 1100 // BLOCK_SIZE
    assert second.hashes[:2] == first.hashes
    assert 0 <= second.at_s <= 6


def test_prompts_without_ids_share_nothing(traces) -> None:
    first, second = traces["azure code"].arrivals
    assert second.at_s == pytest.approx(1.5)
    assert (len(first.hashes), len(second.hashes)) == (2, 1)
    assert not set(first.hashes) & set(second.hashes)


def test_an_agent_shares_blocks_with_its_own_session_only(traces) -> None:
    by_tokens = sorted(traces["agents"].arrivals, key=lambda each: -each.num_prompt_tokens)
    long, *short = by_tokens
    assert len(long.hashes) == 2
    equal = [each for each in short if each.hashes == long.hashes[:1]]
    assert len(equal) == 1  # neither the changed prompt nor the other session's


def test_a_cut_keeps_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "azure2023_code_first.csv").write_text(AZURE)
    (cut,) = load_traces(tmp_path, Random(1), 1.0)
    assert len(cut.arrivals) == 1
