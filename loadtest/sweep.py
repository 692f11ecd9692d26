"""A sweep of rates: how much of what is asked for is served well, and where that ends.

Each rate is a run of its own in an open loop: requests of the scenario's kinds arrive as a Poisson
process, whatever the state of the others, so that a server which cannot keep up is seen to. The
knee is the highest rate up to which the wished part of the answers is good, within the scenario's
goodput limits; a run whose generator was late says nothing, and ends the curve.
"""

import json
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.deployment import Deployment, fit
from loadtest.reporting.charts import Axis, Series, line_chart, number
from loadtest.scenario import Scenario
from loadtest.workloads import UserKind

# An answer is good or is not: so much of them must be, up to the knee.
KNEE_SHARE = 0.9
_CANNOT_RUN = 2
_LIMIT_LAG_MS = 100.0


class SweepError(Exception):
    """The sweep cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """One rate and what came of it."""

    rate: float
    requests: int
    goodput_per_s: float
    goodput_share: float
    failed_share: float
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    lag_p99_ms: float | None
    late_p99_ms: float | None

    @property
    def is_measured(self) -> bool:
        """True if the generator kept up: what it measured is the server's."""
        late_ms = max(self.lag_p99_ms or 0.0, self.late_p99_ms or 0.0)
        return bool(self.requests) and late_ms <= _LIMIT_LAG_MS

    @property
    def is_good(self) -> bool:
        return self.is_measured and self.goodput_share >= KNEE_SHARE


def parse_rates(text: str) -> list[float]:
    """`0.5,1,2,4` in rising order. Raises SweepError."""
    try:
        rates = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        rates = []
    if not rates or rates[0] <= 0:
        raise SweepError(f"--sweep takes requests a second, such as 1,2,4,8; not {text!r}")
    return rates


def knee(points: Sequence[Point]) -> float | None:
    """The highest rate before the first that is not good; None if there is none."""
    best = None
    for point in points:
        if not point.is_good:
            break
        best = point.rate
    return best


def trace(kinds: Mapping[str, UserKind], rate: float, seconds: float, rng: random.Random) -> str:
    """Arrivals of `seconds`, in the agents' format of traces: a session for each kind, whose
    requests share its system prompt."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    names, weights = list(kinds), [kind.weight for kind in kinds.values()]
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < seconds:
        times[rng.choices(names, weights)[0]].append(at_s)
    return "".join(_session(name, kinds[name], times[name]) for name in names if times[name])


def _session(name: str, kind: UserKind, times: Sequence[float]) -> str:
    shares = [0] if kind.system_tokens else []
    requests = [
        {
            "t": round(at_s, 4),
            "type": name,
            "in": kind.system_tokens + kind.document_tokens + kind.query_tokens,
            "out": kind.output_tokens,
            "hash_ids": shares,
        }
        for at_s in times
    ]
    line = {"id": name, "block_size": max(kind.system_tokens, 1), "requests": requests}
    return json.dumps(line) + "\n"


def fitted(scenario: Scenario, deployment: Deployment) -> tuple[Scenario, list[str]]:
    """The scenario with each kind cut by itself to the model's room, and sentences about what was.
    (A replay would divide all of them by what the longest needs.) Raises SweepError."""
    if not scenario.kinds:
        raise SweepError(f"scenario {scenario.name} has no kinds of users: a sweep needs some")
    cut = {name: fit(name, kind, deployment) for name, kind in scenario.kinds.items()}
    kinds = {name: kind for name, (kind, _) in cut.items()}
    return replace(scenario, kinds=kinds), [note for _, note in cut.values() if note]


def scenario_text(scenario: Scenario, rate: float, seconds: float) -> str:
    """The scenario of one rate, beside its trace; its limits are those of the knee."""
    limits = scenario.goodput
    return f"""title = "{rate:g} requests a second of {scenario.name}"
[load]
shape = "replay"
duration_s = {seconds}
drain_s = {scenario.load.drain_s}
[trace]
file = "trace.jsonl"
session_gap_s = 0.000001
[goodput]
ttft_ms = {limits.ttft_ms}
tpot_ms = {limits.tpot_ms}
[slo]
failed_share = {1 - KNEE_SHARE:.3g}
goodput_share = {KNEE_SHARE}
lag_p99_ms = {_LIMIT_LAG_MS}
"""


def run(
    scenario: Scenario, rates: Sequence[float], seconds: float, folder: Path, command: Sequence[str]
) -> list[Point]:
    """Run Locust once for each rate, `command` without scenario and report. Raises SweepError."""
    points = []
    for rate in rates:
        place = folder / f"{rate:g}"
        place.mkdir(parents=True, exist_ok=True)
        arrivals = trace(scenario.kinds, rate, seconds, random.Random(1))
        if not arrivals:
            raise SweepError(f"{rate:g} requests a second for {seconds:g} s are none: run longer")
        (place / "trace.jsonl").write_text(arrivals)
        (place / "sweep.toml").write_text(scenario_text(scenario, rate, seconds))
        own = ["--scenario", str(place / "sweep.toml"), "--report", str(place)]
        ended = subprocess.run([*command, *own], check=False)
        report = place / "report.json"
        if ended.returncode == _CANNOT_RUN or not report.exists():
            raise SweepError(f"nothing was measured at {rate:g} requests a second")
        points.append(point(rate, json.loads(report.read_text())))
        print(line(points[-1]), flush=True)
    return points


def point(rate: float, report: Mapping[str, Any]) -> Point:
    """What a run's report says about its rate."""
    row = report["all"]
    return Point(
        rate=rate,
        requests=row["requests"],
        goodput_per_s=(row["goodput_share"] or 0.0) * rate,
        goodput_share=row["goodput_share"] or 0.0,
        failed_share=row["failed_share"] or 0.0,
        output_tokens_per_s=row["output_tokens_per_s"],
        ttft_p50_ms=row["ttft_ms"]["p50"],
        ttft_p99_ms=row["ttft_ms"]["p99"],
        itl_p50_ms=row["itl_ms"]["p50"],
        lag_p99_ms=report["generator"]["lag_ms"]["p99"],
        late_p99_ms=row["late_ms"]["p99"],
    )


def line(one: Point) -> str:
    """A row of the terminal's table."""
    shown = [
        number(value) if value is not None else "-"
        for value in (
            one.rate, one.goodput_per_s, 100 * one.goodput_share, one.output_tokens_per_s,
            one.ttft_p50_ms, one.ttft_p99_ms, one.itl_p50_ms, one.lag_p99_ms,
        )
    ]  # fmt: skip
    told = "" if one.is_measured else "  the generator was late: not a measurement"
    return "".join(f"{text:>10}" for text in shown) + told


HEADINGS = "".join(
    f"{text:>10}"
    for text in ("asked/s", "good/s", "good %", "tok/s", "TTFT p50", "p99", "ITL p50", "lag p99")
)


def is_undecided(points: Sequence[Point]) -> bool:
    """True if the generator was late at the first rate that was not served well: the knee is then
    not known."""
    deciding = next((one for one in points if not one.is_good), None)
    return deciding is not None and not deciding.is_measured


def told(points: Sequence[Point], best: float | None) -> str:
    """The result in one sentence."""
    if best is None and not points[0].is_measured:
        return f"the generator was late at {points[0].rate:g} requests a second already"
    if best is None:
        return f"no rate had {KNEE_SHARE:.0%} good answers: begin lower than {points[0].rate:g}"
    if best == points[-1].rate:
        return f"all rates were served well: the knee is above {best:g} requests a second"
    above = next(one for one in points if one.rate > best)
    if not above.is_measured:
        return (
            f"at least {best:g} requests a second are served well: "
            f"at {above.rate:g} the generator was late, so that nobody knows the knee"
        )
    return f"the knee is at {best:g} requests a second: above, less than {KNEE_SHARE:.0%} are good"


def regressions(
    before: Mapping[str, Any], points: Sequence[Point], tolerance: float
) -> Iterator[str]:
    """Rates of both sweeps at which less is served well than before, in words."""
    old = {row["rate"]: row["goodput_per_s"] for row in before["points"]}
    for one in points:
        was = old.get(one.rate)
        if was and one.goodput_per_s < was * (1 - tolerance):
            yield f"{one.rate:g}/s: goodput {number(was)} before, {number(one.goodput_per_s)} now"


def compared(before: Mapping[str, Any], points: Sequence[Point], worse: Sequence[str]) -> str:
    """The result of a comparison in one sentence."""
    common = {row["rate"] for row in before["points"]} & {one.rate for one in points}
    if not common:
        return "nothing is compared: no rate is in both sweeps"
    return f"of {len(common)} rates that the baseline has, {len(worse) or 'none'} became worse"


def as_dict(
    scenario: Scenario, seconds: float, points: Sequence[Point], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of sweep.json."""
    return {
        "scenario": scenario.name,
        "seconds_each": seconds,
        "knee": knee(points),
        "is_undecided": is_undecided(points),
        "notes": list(notes),
        "told": told(points, knee(points)),
        "points": [asdict(one) for one in points],
    }


def _label(points: Sequence[Point], best: float) -> str:
    """What the picture calls the best rate: a knee only where the sentence does."""
    is_knee = best != points[-1].rate and not is_undecided(points)
    return f"knee at {best:g}/s" if is_knee else f"good up to {best:g}/s at least"


def picture(points: Sequence[Point], best: float | None) -> str:
    """The goodput curve as an SVG that stands alone, light and dark."""
    asked = Series("asked for", "e", [(0, 0.0), *((one.rate, one.rate) for one in points)])
    measured, late = (
        [(one.rate, one.goodput_per_s if one.is_measured is kept else None) for one in points]
        for kept in (True, False)
    )
    shown = [asked, Series("served well", "c", measured)]
    across = "requests asked for, per s"
    if any(not one.is_measured for one in points):
        shown.append(Series("generator late", "l", late, is_named=False))
        across += " (grey dots: the generator was late)"
    if best is not None:
        shown.append(Series(_label(points, best), "b", [(best, 0.0), (best, best)]))
    svg = line_chart("goodput by rate", shown, Axis(across, "good per s"))
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{_STYLE}</style>", 1
    )


_STYLE = (
    "text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#5b6672}text.y{text-anchor:end}"
    "text.x{text-anchor:middle}.grid{stroke:#dfe4ea;fill:none}"
    ".line{fill:none;stroke-width:2}.line.e{stroke:#a9b4c0;stroke-dasharray:5 4}"
    ".line.c{stroke:#1a7d4f}.line.b{stroke:#d9752b}.line.l{stroke:none}.dot{stroke:none}"
    ".dot.e{fill:none}.dot.c{fill:#1a7d4f}.dot.b{fill:#d9752b}.dot.l{fill:#a9b4c0}"
    ".swatch.e{fill:#a9b4c0}.swatch.c{fill:#1a7d4f}.swatch.b{fill:#d9752b}"
    "@media (prefers-color-scheme:dark){text{fill:#98a3af}.grid{stroke:#333b45}"
    ".line.c{stroke:#4cc38a}.line.b{stroke:#f0985a}}"
)
