"""A scenario file: the users, the shape of the load, and the limits of the run. Strict TOML."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadtest.reporting.verdict import parse_limit
from loadtest.workloads import KINDS, UserKind

# So late may the generator itself be, in one of a hundred turns. Of a run in which it was later,
# nobody knows whether the server was slow.
MAX_LAG_MS = 100.0
FOLDER = Path(__file__).parent / "scenarios"


class ScenarioError(Exception):
    """A scenario cannot be read; the message says where and why."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of users over time. `quiet_users` are there before and after a spike."""

    shape: Literal["constant", "ramp", "spike", "soak", "replay"] = "constant"
    users: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    quiet_users: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    users_per_s: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 10.0
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 120.0
    # Time for open requests to end when the run is over.
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0


class TraceUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replay of a trace: its file, its speed and its start."""

    file: str = ""
    speed: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 1.0
    start_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    # Traces of whole sessions do not say when sessions begin: a Poisson process with this mean.
    session_gap_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class GoodputLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer is good when its first token and its mean time per token are within these."""

    ttft_ms: Annotated[float, msgspec.Meta(gt=0)] = 2000.0
    tpot_ms: Annotated[float, msgspec.Meta(gt=0)] = 100.0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    load: Load = Load()
    users: dict[str, dict[str, Any]] = {}
    trace: TraceUse = TraceUse()
    goodput: GoodputLimits = GoodputLimits()
    slo: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file, read and checked. `kinds` are those with a weight."""

    name: str
    title: str
    load: Load
    kinds: Mapping[str, UserKind]
    trace: TraceUse
    goodput: GoodputLimits
    slo: Mapping[str, float]

    def goodput_limits_ms(self, kind_name: str) -> tuple[float | None, float | None]:
        """The limits of TTFT and TPOT of an answer to this kind; None: no limit."""
        kind = self.kinds.get(kind_name, UserKind())
        pairs = ((kind.ttft_ms, self.goodput.ttft_ms), (kind.tpot_ms, self.goodput.tpot_ms))
        own_or_common = [own or common for own, common in pairs]
        ttft_ms, tpot_ms = (limit if limit > 0 else None for limit in own_or_common)
        return ttft_ms, tpot_ms


def is_good(limits_ms: tuple[float | None, float | None], ttft_ms: float, tpot_ms: float) -> bool:
    """True if an answer counts as goodput."""
    measured = zip(limits_ms, (ttft_ms, tpot_ms), strict=True)
    return all(limit is None or actual <= limit for limit, actual in measured)


def with_options(
    load: Load, users: int | None, users_per_s: float | None, duration_s: float | None
) -> Load:
    """The load with the options of the command line."""
    given = {"users": users, "users_per_s": users_per_s, "duration_s": duration_s}
    return msgspec.structs.replace(load, **{key: one for key, one in given.items() if one})


def load(name: str) -> Scenario:
    """A scenario of this folder by name, or of any file by path. Raises ScenarioError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        return parse(path.stem, path.read_bytes(), path.parent)
    except FileNotFoundError:
        known = ", ".join(sorted(known.stem for known in FOLDER.glob("*.toml")))
        raise ScenarioError(f"no scenario {name!r}; there are {known}, or give a file") from None


def parse(name: str, content: bytes, folder: Path) -> Scenario:
    """Read a scenario; a trace's relative path starts at `folder`. Raises ScenarioError."""
    try:
        file = msgspec.toml.decode(content, type=_File)
        kinds = {kind: _kind(kind, given) for kind, given in file.users.items()}
        for key in file.slo:
            parse_limit(key)
    except (msgspec.DecodeError, ValueError) as error:
        raise ScenarioError(f"scenario {name}: {error}") from error
    if file.load.shape == "replay":
        if file.users:
            raise ScenarioError(f"scenario {name}: a replay has no [users]: the trace has its own")
    elif not any(kind.weight for kind in kinds.values()):
        raise ScenarioError(f"scenario {name}: no kind of user has a weight")
    trace = file.trace
    if trace.file:
        trace = msgspec.structs.replace(trace, file=str(folder / trace.file))
    return Scenario(
        name=name,
        title=file.title,
        load=file.load,
        kinds={kind: given for kind, given in kinds.items() if given.weight},
        trace=trace,
        goodput=file.goodput,
        slo={"failed_share": 0.0, "lag_p99_ms": MAX_LAG_MS, **file.slo},
    )


def _kind(name: str, given: Mapping[str, Any]) -> UserKind:
    if name not in KINDS:
        raise ValueError(f"[users.{name}]: kinds are {', '.join(KINDS)}")
    own = {**msgspec.to_builtins(KINDS[name]), "weight": 1, **given}
    try:
        return msgspec.convert(own, UserKind)
    except msgspec.ValidationError as error:
        raise ValueError(f"[users.{name}]: {error}") from error
