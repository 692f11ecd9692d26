"""A sweep's arrivals, its knee, and how it compares with an earlier one."""

import random
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest import __main__ as command_line
from loadtest import scenario, sweep
from loadtest.deployment import Deployment
from loadtest.replay import read_trace
from loadtest.sweep import Point, SweepError, knee, parse_rates, picture, regressions
from loadtest.workloads import UserKind, Writer

KINDS = {
    "chat": UserKind(weight=3, system_tokens=20, query_tokens=10, output_tokens=7),
    "batch": UserKind(weight=1, document_tokens=50, query_tokens=5, output_tokens=9),
}


def point(rate: float, share: float = 1.0, lag_ms: float = 1.0) -> Point:
    return Point(rate, 10, rate * share, share, 1 - share, 50.0, 20.0, 90.0, 5.0, lag_ms, 2.0)


def test_rates_are_sorted_and_what_is_none_is_refused() -> None:
    assert parse_rates("8, 0.5,2,2") == [0.5, 2, 8]
    for text in ("", "fast", "0,1", "-1"):
        with pytest.raises(SweepError, match="requests a second"):
            parse_rates(text)


def test_arrivals_come_at_the_rate_in_the_kinds_parts_and_share_their_prompts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(sweep.trace(KINDS, rate=20.0, seconds=100.0, rng=random.Random(1)))
    arrivals = read_trace(file, session_gap_s=1e-6, rng=random.Random(1))
    assert len(arrivals) == pytest.approx(2000, rel=0.1)
    chats = [one for one in arrivals if one.num_output_tokens == 7]
    assert len(chats) == pytest.approx(len(arrivals) * 3 / 4, rel=0.1)
    one, other = (arrival.prompt(Writer(), f"own{n}") for n, arrival in enumerate(chats[:2]))
    assert one.split()[:20] == other.split()[:20]
    assert one.split()[20:] != other.split()[20:]
    gaps = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    assert max(gaps) > 3 * sum(gaps) / len(gaps), "a Poisson process has long gaps"


def test_each_kind_is_cut_by_itself_to_the_models_room() -> None:
    mixed = scenario.load("mixed")
    model = Deployment("m", max_model_len=2048, tokens_per_word=1.0, template_tokens=40)
    cut, notes = sweep.fitted(mixed, model)
    assert cut.kinds["chat"] == mixed.kinds["chat"], "a long document of others does not cut it"
    assert cut.kinds["long_document"].first_turn_tokens <= model.room(num_messages=2)
    assert [note.split(":")[0] for note in notes] == ["long_document"]
    with pytest.raises(SweepError, match="no kinds of users"):
        sweep.fitted(scenario.load("replay"), model)


def test_the_scenario_of_a_rate_is_one_that_can_be_read() -> None:
    text = sweep.scenario_text(scenario.load("mixed"), 4, 30)
    read = scenario.parse("sweep", text.encode(), Path("/folder"))
    assert (read.load.shape, read.trace.file) == ("replay", "/folder/trace.jsonl")
    assert read.goodput == scenario.load("mixed").goodput
    assert read.slo == {"failed_share": 0.1, "goodput_share": sweep.KNEE_SHARE, "lag_p99_ms": 100}


@pytest.mark.parametrize(
    ("points", "best"),
    [
        ([point(1), point(2), point(4, 0.5)], 2),
        ([point(1), point(2, 0.8), point(4)], 1),
        ([point(1), point(2)], 2),
        ([point(1, 0.1)], None),
        ([point(1), point(2, lag_ms=500)], 1),
    ],
    ids=["bends", "only up to the first bad one", "above", "below", "a late generator"],
)
def test_the_knee(points: list[Point], best: float | None) -> None:
    assert knee(points) == best


def test_a_result_says_whether_there_was_a_knee() -> None:
    assert "knee is at 2" in sweep.told([point(2), point(4, 0.2)], 2)
    assert "nobody knows the knee" in sweep.told([point(2), point(4, lag_ms=500)], 2)
    assert "late at 2" in sweep.told([point(2, lag_ms=500)], None)
    assert "above 2" in sweep.told([point(2)], 2)
    assert "begin lower than 2" in sweep.told([point(2, 0.1)], None)
    assert "not a measurement" in sweep.line(point(1, lag_ms=500))


@pytest.mark.parametrize(
    ("points", "is_undecided"),
    [
        ([point(1), point(2, lag_ms=500), point(4, 0.1)], True),
        ([point(1, lag_ms=500)], True),
        ([point(1), point(2, 0.1), point(4, lag_ms=500)], False),
        ([point(1), point(2)], False),
    ],
    ids=["at the rate that decides", "at the first", "above it", "never"],
)
def test_a_late_generator_leaves_a_sweep_undecided(points: list[Point], is_undecided: bool) -> None:
    assert sweep.is_undecided(points) is is_undecided
    assert sweep.as_dict(scenario.load("mixed"), 30, points)["is_undecided"] is is_undecided


def test_less_than_an_earlier_sweep_served_is_told_for_the_same_rates() -> None:
    before = sweep.as_dict(scenario.load("mixed"), 30, [point(1), point(2)])
    worse = list(regressions(before, [point(1), point(2, 0.7), point(4, 0.1)], 0.15))
    assert worse == ["2/s: goodput 2 before, 1.4 now"]
    told = sweep.compared(before, [point(1), point(2, 0.7), point(4, 0.1)], worse)
    assert told == "of 2 rates that the baseline has, 1 became worse"
    assert "none became worse" in sweep.compared(before, [point(1)], [])
    assert "nothing is compared" in sweep.compared(before, [point(4)], [])


def test_the_picture_stands_alone() -> None:
    texts = texts_of([point(1), point(2), point(4, 0.3)])
    assert {"served well", "knee at 2/s", "requests asked for, per s"} <= texts


@pytest.mark.parametrize("above", [[], [point(4, lag_ms=500)]], ids=["all good", "late"])
def test_the_picture_names_no_knee_that_is_not_known(above: list[Point]) -> None:
    assert "good up to 2/s at least" in texts_of([point(1), point(2), *above])


def test_the_line_of_the_picture_leaves_out_what_was_not_measured() -> None:
    drawn = ElementTree.fromstring(picture([point(1), point(2, 0.2, lag_ms=500), point(4)], 1))
    dots = [each.get("class") for each in drawn.iter() if each.tag.endswith("circle")]
    assert dots.count("dot c") == 2
    assert dots.count("dot l") == 1
    assert any("grey dots" in str(each.text) for each in drawn.iter())


def texts_of(points: list[Point]) -> set[str | None]:
    drawn = ElementTree.fromstring(picture(points, knee(points)))
    return {each.text for each in drawn.iter() if each.tag.endswith("text")}


@pytest.mark.parametrize(
    ("points", "code"),
    [([point(1), point(2, 0.1)], 0), ([point(1), point(2, lag_ms=500)], 1), ([point(1, 0.1)], 1)],
    ids=["a knee", "late at the rate that decides", "no good rate"],
)
def test_the_exit_code_says_whether_a_knee_was_found(
    points: list[Point], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Deployment("m", max_model_len=2048, tokens_per_word=1.0, template_tokens=40)
    monkeypatch.setattr(command_line, "fetcher", lambda *_: lambda *_: {})
    monkeypatch.setattr(command_line, "inspect", lambda *_: model)
    monkeypatch.setattr(sweep, "run", lambda *_: points)
    monkeypatch.setenv("API_KEY", "")
    asked = ["--host", "http://server", "--sweep", "1,2", "--report", str(tmp_path)]
    assert command_line.main(asked) == code
    assert (tmp_path / "sweep.svg").exists()
