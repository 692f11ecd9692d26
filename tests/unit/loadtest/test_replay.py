"""Recorded traces of three formats, their window, their cut, their prompts."""

import gzip
import json
import random
from pathlib import Path

import pytest

from loadtest.deployment import Deployment
from loadtest.replay import Arrival, TraceError, fit, read_trace, window
from loadtest.workloads import Writer

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9305900,396,0
"""


def read(path: Path, content: str) -> list[Arrival]:
    path.write_text(content)
    return read_trace(path, session_gap_s=10.0, rng=random.Random(1))


def mooncake(*rows: tuple[int, int, list[int]]) -> str:
    return "".join(
        json.dumps(
            {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": hashes}
        )
        + "\n"
        for at, length, hashes in rows
    )


def test_azures_csv(tmp_path: Path) -> None:
    assert read(tmp_path / "t.csv", AZURE) == [Arrival(0.0, 374, 44), Arrival(4.25, 396, 1)]


def test_mooncakes_blocks_become_shared_text(tmp_path: Path) -> None:
    arrivals = read(tmp_path / "t.jsonl", mooncake((0, 1030, [0, 1, 2]), (27, 600, [0, 9])))
    assert [one.at_s for one in arrivals] == [0.0, 0.027]
    one, other = (arrival.prompt(Writer(), "own").split() for arrival in arrivals)
    assert (len(one), len(other)) == (1030, 600)
    assert one[:512] == other[:512]
    assert one[512:600] != other[512:]


def test_arrivals_on_mooncakes_grid_are_spread_over_it(tmp_path: Path) -> None:
    rows = [(3000 * (number // 50), 10, [0]) for number in range(200)]
    times = [one.at_s for one in read(tmp_path / "t.jsonl", mooncake(*rows))]
    assert times == sorted(times)
    assert len(set(times)) == 200
    assert 9 < times[-1] <= 12


def test_sessions_with_sub_agents_gzipped(tmp_path: Path) -> None:
    requests = [
        {"t": 0.0, "type": "s", "in": 130, "out": 7, "hash_ids": [1, 2, 3]},
        {
            "t": 5.0,
            "type": "subagent",
            "requests": [{"t": 1.5, "type": "n", "in": 70, "out": 2, "hash_ids": [1]}],
        },
    ]
    lines = [{"id": name, "block_size": 64, "requests": requests} for name in ("a", "b")]
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    arrivals = read_trace(path, session_gap_s=10.0, rng=random.Random(1))
    of_a = [one for one in arrivals if one.blocks[0].startswith("a/")]
    assert [(one.at_s, one.num_prompt_tokens) for one in of_a] == [(0.0, 130), (6.5, 70)]
    of_b = [one for one in arrivals if one not in of_a]
    assert of_b[0].at_s > 0
    assert of_b[0].prompt(Writer(), "x") != of_a[0].prompt(Writer(), "x")


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", '{"timestamp": 1}\n'])
def test_a_file_that_is_not_a_trace_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError, match=r"t\.jsonl"):
        read(tmp_path / "t.jsonl", content)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv", 1.0, random.Random(1))


def test_a_window_starts_at_zero_and_runs_faster() -> None:
    arrivals = [Arrival(float(at), 1, 1) for at in range(10)]
    assert [one.at_s for one in window(arrivals, 4, 2, speed=2)] == [0.0, 0.5, 1.0, 1.5]


def test_lengths_are_divided_by_one_number_and_prefixes_stay_shared() -> None:
    model = Deployment("m", max_model_len=118, tokens_per_word=1.0, template_tokens=10)
    long = Arrival(0.0, 900, 100, ("a", "b"), 512)
    short = Arrival(1.0, 450, 50, ("a",), 512)
    (cut_long, cut_short), note = fit([long, short], model)
    assert (cut_long.num_prompt_tokens, cut_long.num_output_tokens) == (90, 10)
    assert (cut_short.num_prompt_tokens, cut_short.num_output_tokens) == (45, 5)
    assert "divided by 10.0" in note
    one, other = (cut.prompt(Writer(), "own").split() for cut in (cut_long, cut_short))
    assert one[:45] == other


def test_what_fits_is_left_as_it_is() -> None:
    model = Deployment("m", max_model_len=2000, tokens_per_word=1.0, template_tokens=10)
    arrivals = [Arrival(0.0, 900, 100)]
    assert fit(arrivals, model) == (arrivals, "")
