"""The users' measurements as rows of Locust's own statistics, beside Locust's row of each request.

A row is a type (TTFT, ITL, ...) of one kind of user. Values go to the rows alone and not to
Locust's "Aggregated", which keeps counting requests. Locust sends rows from workers to the master
and adds them up there; sampled requests, notes and CPU, which it does not know, travel beside them.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import gevent
import locust.stats
from locust.runners import MasterRunner, WorkerRunner

from loadtest.answers import StreamedAnswer
from loadtest.deployment import Deployment
from loadtest.reporting.stages import timeline
from loadtest.reporting.summary import (
    GENERATOR,
    GOODPUT,
    INPUT,
    ITL,
    LAG,
    LATE,
    OUTPUT,
    RATE,
    REQUEST,
    TTFT,
    Row,
    all_kinds,
)
from loadtest.scenario import Scenario, is_good

HISTORY_EVERY_S = 3.0
_LAG_EVERY_S = 0.05
_CPU_EVERY_S = 2.0
_REPORT_KEY = "baton"
# Sampled requests: in a worker between two reports, and over the whole run.
_MAX_FRESH_SAMPLES = 64
_MAX_SAMPLES = 2048
_NUM_SLOWEST = 10
_MAX_NOTES = 32
_MAX_HISTORY = 30_000


def three_digits(milliseconds: float) -> float:
    """Round to three digits, finer than Locust's whole milliseconds: token gaps may be shorter."""
    return float(f"{milliseconds:.3g}")


class Sampler:
    """A uniform sample of a stream of unknown length."""

    def __init__(self, max_kept: int, rng: random.Random) -> None:
        self.kept: list[dict[str, Any]] = []
        self._max_kept = max_kept
        self._num_seen = 0
        self._rng = rng

    def add(self, sample: dict[str, Any]) -> None:
        self._num_seen += 1
        if len(self.kept) < self._max_kept:
            self.kept.append(sample)
        elif (place := self._rng.randrange(self._num_seen)) < self._max_kept:
            self.kept[place] = sample

    def drain(self) -> list[dict[str, Any]]:
        kept, self.kept, self._num_seen = self.kept, [], 0
        return kept


class Slowest:
    """The requests that took longest, the longest first."""

    def __init__(self, max_kept: int) -> None:
        self.kept: list[dict[str, Any]] = []
        self._max_kept = max_kept

    def add(self, sample: dict[str, Any]) -> None:
        self.kept.append(sample)
        self.kept.sort(key=lambda one: -float(one["e2e_ms"]))
        del self.kept[self._max_kept :]

    def drain(self) -> list[dict[str, Any]]:
        kept, self.kept = self.kept, []
        return kept


class Recorder:
    """One process's measurements; on the master, those of all workers."""

    def __init__(self, environment: Any) -> None:
        locust.stats.bucket_response_time = three_digits  # type: ignore[assignment]
        self._environment = environment
        self.scenario: Scenario | None = None
        is_worker = isinstance(environment.runner, WorkerRunner)
        max_kept = _MAX_FRESH_SAMPLES if is_worker else _MAX_SAMPLES
        self.samples = Sampler(max_kept, random.Random(1))
        self.slowest = Slowest(_NUM_SLOWEST)
        self.notes: dict[str, None] = {}
        self.model = ""
        self.max_cpu_percent = 0.0
        self.history: list[dict[str, Any]] = []
        self._last_counts: dict[str, Counter[float]] = {}
        self._listen()

    def begin(self) -> None:
        """Begin a test; Locust has cleared its own rows."""
        self.samples.drain()
        self.slowest.drain()
        self.notes.clear()
        self.history.clear()
        self._last_counts.clear()
        self.max_cpu_percent = 0.0

    # measurements of users

    def first_text(self, kind: str, seconds: float) -> None:
        self._log(kind, TTFT, seconds * 1000)

    def next_text(self, kind: str, seconds: float) -> None:
        self._log(kind, ITL, seconds * 1000)

    def late(self, kind: str, seconds: float) -> None:
        self._log(kind, LATE, seconds * 1000)

    def failed(self, kind: str, seconds: float) -> None:
        """Record a failed request, which is not goodput."""
        self._record_goodput(kind, seconds, was_good=False)

    def answered(
        self,
        kind: str,
        answer: StreamedAnswer,
        sent_s: float,
        ended_s: float,
        headers: Mapping[str, str],
    ) -> None:
        """Record a whole answer."""
        self._log(kind, INPUT, answer.num_prompt_tokens)
        self._log(kind, OUTPUT, answer.num_output_tokens)
        ttft_ms = (answer.first_text_s - answer.origin_s) * 1000
        assert self.scenario is not None, "a test has begun"
        limits_ms = self.scenario.goodput_limits_ms(kind)
        was_good = is_good(limits_ms, ttft_ms, answer.tpot_s * 1000)
        self._record_goodput(kind, ended_s - answer.origin_s, was_good)
        stages = timeline(answer, sent_s, ended_s, headers.get("server-timing", ""))
        sample = {
            "kind": kind,
            "request_id": headers.get("x-request-id", ""),
            "e2e_ms": (ended_s - answer.origin_s) * 1000,
            "ttft_ms": ttft_ms,
            "input_tokens": answer.num_prompt_tokens,
            "output_tokens": answer.num_output_tokens,
            "stages": [asdict(stage) for stage in stages],
        }
        self.samples.add(sample)
        self.slowest.add(sample)

    def rate(self, kind: str, answer: StreamedAnswer) -> None:
        """Record the speed of one stream, if it was seen."""
        if answer.tokens_per_s:
            self._log(kind, RATE, answer.tokens_per_s)

    def note(self, text: str) -> None:
        """Add a sentence to the report, such as one about sizes that were cut."""
        if text and len(self.notes) < _MAX_NOTES:
            self.notes[text] = None

    def uses(self, deployment: Deployment) -> None:
        self.model = f"{deployment.model} ({deployment.max_model_len:,} tokens)"

    # read by the report

    def rows(self) -> dict[tuple[str, str], Row]:
        return {
            (name, row_type): _row(entry)
            for (name, row_type), entry in self._environment.stats.entries.items()
        }

    # in the background

    def watch_lag(self) -> None:
        """Measure how long a ready greenlet waits for its turn, by which all measured times may be
        too long, and the part of a core that this process needs. Runs until killed."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while True:
            asleep_s = time.perf_counter()
            gevent.sleep(_LAG_EVERY_S)
            now_s = time.perf_counter()
            self._log(GENERATOR, LAG, max(now_s - asleep_s - _LAG_EVERY_S, 0.0) * 1000)
            if now_s - began_s > _CPU_EVERY_S:
                cpu_s = time.process_time()
                percent = 100 * (cpu_s - began_cpu_s) / (now_s - began_s)
                self.max_cpu_percent = max(self.max_cpu_percent, percent)
                began_s, began_cpu_s = now_s, cpu_s

    def watch_history(self, publish: Callable[[dict[str, Any]], None]) -> None:
        """Keep percentiles of the last seconds, for the charts. Runs until killed."""
        began_s = time.monotonic()
        while True:
            gevent.sleep(HISTORY_EVERY_S)
            moment = self._moment(time.monotonic() - began_s)
            if len(self.history) < _MAX_HISTORY:
                self.history.append(moment)
            publish(moment)

    def _moment(self, at_s: float) -> dict[str, Any]:
        rows = self.rows()
        moment: dict[str, Any] = {"t": at_s, "users": self._environment.runner.user_count}
        for name, row_type in (("ttft_ms", TTFT), ("itl_ms", ITL), ("e2e_ms", REQUEST)):
            counts = all_kinds(rows, row_type).counts
            fresh = Row(counts=counts - self._last_counts.get(name, Counter()))
            self._last_counts[name] = counts
            moment[name] = fresh.percentiles()
        return moment

    # Locust's side

    def _log(self, kind: str, row_type: str, value: float) -> None:
        self._environment.stats.entries[kind, row_type].log(value, 0)

    def _record_goodput(self, kind: str, seconds: float, was_good: bool) -> None:
        entry = self._environment.stats.entries[kind, GOODPUT]
        entry.log(seconds * 1000, 0)
        if not was_good:
            entry.log_error(None)

    def _listen(self) -> None:
        events = self._environment.events
        if isinstance(self._environment.runner, WorkerRunner):
            events.report_to_master.add_listener(self._on_report_to_master)
        elif isinstance(self._environment.runner, MasterRunner):
            events.worker_report.add_listener(self._on_worker_report)

    def _on_report_to_master(self, client_id: str, data: dict[str, Any]) -> None:
        data[_REPORT_KEY] = {
            "samples": self.samples.drain(),
            "slowest": self.slowest.drain(),
            "notes": list(self.notes),
            "model": self.model,
            "max_cpu_percent": self.max_cpu_percent,
        }

    def _on_worker_report(self, client_id: str, data: dict[str, Any]) -> None:
        details = data.get(_REPORT_KEY, {})
        for sample in details.get("samples", ()):
            self.samples.add(sample)
        for sample in details.get("slowest", ()):
            self.slowest.add(sample)
        for note in details.get("notes", ()):
            self.note(note)
        self.model = details.get("model") or self.model
        self.max_cpu_percent = max(self.max_cpu_percent, details.get("max_cpu_percent", 0.0))


def _row(entry: locust.stats.StatsEntry) -> Row:
    return Row(
        num=entry.num_requests,
        num_failed=entry.num_failures,
        total=entry.total_response_time,
        counts=Counter(entry.response_times),
        by_second=Counter(entry.num_reqs_per_sec),
        failed_by_second=Counter(entry.num_fail_per_sec),
    )
