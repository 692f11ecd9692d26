"""One load test in one process: its scenario, the deployment under test, and its summary.

Locust's events drive it. Master and single process decide (users, shape, verdict); workers only
learn the scenario's name, the run's salt and length with the first users they are given.
"""

import functools
import json
import logging
import os
import random
import secrets
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import gevent
from gevent.pool import Group
from locust import LoadTestShape, argument_parser
from locust.runners import MasterRunner, WorkerRunner

from loadtest import replay, scenario, shapes
from loadtest.deployment import Deployment, DeploymentError, fit, inspect
from loadtest.http_json import fetcher
from loadtest.recorder import HISTORY_EVERY_S, Recorder
from loadtest.replay import Arrival, TraceError
from loadtest.reporting import baseline, live_page, report, summary, verdict
from loadtest.reporting.baseline import BaselineError
from loadtest.reporting.summary import Rows
from loadtest.scenario import Load, Scenario, ScenarioError
from loadtest.workloads import UserKind, Writer

KEPT, NOT_KEPT, CANNOT_RUN = 0, 1, 2
REPLAY = "replay"
_PUBLISH_EVERY = 5  # moments of history
_LOOK_EVERY_S = 0.05
_FIRST_USER_S = 60.0
# Beyond what answers may take to end: for workers to tell of them.
_LAST_REPORT_S = 30.0
_MAX_SHOWN_ERRORS = 20

log = logging.getLogger("loadtest")


def add_options(parser: Any, **_: Any) -> None:
    """Add the options of this load test to Locust's own."""
    for name, default, details in (
        ("--scenario", "mixed", "a file of loadtest/scenarios, or a path"),
        ("--model", "", "which one, when several are served"),
        ("--trace", "", "the replay's trace: csv or jsonl, also gzipped"),
        ("--trace-speed", 0.0, "2 replays in half the time"),
        ("--report", "", "folder for report.html and report.json"),
        ("--baseline", "", "an earlier report.json: what became worse is said, and fails"),
        ("--tolerance", 0.15, "by which part a figure may be worse than the baseline's"),
        ("--traces", "", "URL of a Jaeger, for links to the slowest requests"),
    ):
        parser.add_argument(
            name, default=default, type=type(default), help=details, include_in_web_ui=False
        )


# Locust's workers ask for this for each option of each message about users, and it
# builds the whole parser anew: seconds without a heartbeat, and the master gives them up (2.47).
argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)


class ScenarioShape(LoadTestShape):
    """The number of users over time, for which Locust asks every second."""

    abstract = True  # hidden from Locust: a scenario chooses it
    use_common_options = True

    def __init__(self, load: Load, num_shards: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._load = load
        self._num_shards = num_shards

    def tick(self) -> tuple[int, float] | None:
        at_s: float = self.get_run_time()  # type: ignore[no-untyped-call]
        if self._load.shape == REPLAY:
            return self._replay_tick(at_s)
        wanted = shapes.users_at(self._load, at_s)
        return None if wanted is None else (wanted, self._load.users_per_s)

    def _replay_tick(self, at_s: float) -> tuple[int, float] | None:
        """One sender in each worker, until all requests are sent and answered."""
        late_s = at_s - self._load.duration_s
        are_done = late_s > 0 and self.runner is not None and not self.runner.user_count
        return None if are_done or late_s > self._load.drain_s else (self._num_shards, 100.0)


class LoadTest:
    """The load test of this process, kept in `environment.load_test`."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.recorder = Recorder(environment)
        self.deployment: Deployment | None = None
        self.began_at_s = 0.0
        self._baseline: dict[str, Any] | None = None
        self._is_reported = False
        self._is_timed_here = False
        self._timer: gevent.Greenlet | None = None
        self._background = Group()
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stop.add_listener(self._on_stop)
        if not isinstance(environment.runner, WorkerRunner):
            events.quitting.add_listener(self._on_quitting)
            self._decide()

    @property
    def options(self) -> Namespace:
        options: Namespace = self.environment.parsed_options
        return options

    @property
    def scenario(self) -> Scenario:
        assert self.recorder.scenario is not None, "a test has begun"
        return self.recorder.scenario

    @property
    def writer(self) -> Writer:
        assert self.deployment is not None, "asked before"
        return Writer(self.deployment.tokens_per_word, self.options.run_salt)

    def kind(self, name: str) -> UserKind:
        """A kind of user of the scenario, cut to the model's room."""
        assert self.deployment is not None, "asked before"
        cut, note = fit(name, self.scenario.kinds[name], self.deployment)
        self.recorder.note(note)
        return cut

    def arrivals(self) -> list[Arrival]:
        """This process's part of the trace. Raises TraceError."""
        assert self.deployment is not None, "asked before"
        trace, rng = self.scenario.trace, random.Random(1)
        path = Path(self.options.trace or trace.file)
        speed = self.options.trace_speed or trace.speed
        all_of_them = replay.read_trace(path, trace.session_gap_s, rng)
        wanted = replay.window(all_of_them, trace.start_s, self.options.duration_s, speed)
        fitting, note = replay.fit(wanted, self.deployment)
        self.recorder.note(note)
        self.recorder.note(f"trace: {path.name}, {len(wanted):,} requests, {speed:g} times as fast")
        shard = getattr(self.environment.runner, "worker_index", 0)
        return fitting[shard % self.options.num_shards :: self.options.num_shards]

    # master and single process

    def _decide(self) -> None:
        """Set users, their number and the times; Locust's own options win over the scenario's."""
        options, environment = self.options, self.environment
        self._read_scenario()
        self._read_baseline()
        options.duration_s = options.run_time
        load = self._load()
        options.num_users, options.spawn_rate = load.users, load.users_per_s
        options.run_salt, options.duration_s = secrets.token_hex(4), load.duration_s
        # Locust would count it from before workers look what there is to test.
        self._is_timed_here = options.headless or options.autostart
        options.run_time = None if self._is_timed_here else load.duration_s
        is_master = isinstance(environment.runner, MasterRunner)
        options.num_shards = options.expect_workers if is_master else 1
        environment.stop_timeout = environment.stop_timeout or load.drain_s
        environment.user_classes = self._user_classes(load)
        if load.shape != "constant":
            shape = ScenarioShape(load, options.num_shards)
            shape.runner = environment.runner
            environment.shape_class = shape
        if environment.web_ui is not None:
            live_page.add(environment.web_ui, self)

    def _load(self) -> Load:
        options = self.options
        duration_s = options.run_time or options.duration_s
        return scenario.with_options(
            self.scenario.load, options.num_users, options.spawn_rate, duration_s
        )

    def _user_classes(self, load: Load) -> list[Any]:
        chosen = []
        for user_class in self.environment.user_classes:
            kind = self.scenario.kinds.get(user_class.kind)
            if kind is not None:
                user_class.weight = kind.weight
            if kind is not None or (load.shape == REPLAY and user_class.kind == REPLAY):
                chosen.append(user_class)
        return chosen

    # every process

    def _read_scenario(self) -> None:
        try:
            self.recorder.scenario = scenario.load(self.options.scenario)
        except ScenarioError as error:
            sys.exit(f"loadtest: {error}")

    def _read_baseline(self) -> None:
        if not self.options.baseline:
            return
        try:
            self._baseline = baseline.read(Path(self.options.baseline))
        except BaselineError as error:
            sys.exit(f"loadtest: {error}")

    def _on_start(self, **_: Any) -> None:
        if isinstance(self.environment.runner, WorkerRunner):
            self._read_scenario()
        self.recorder.begin()
        self._is_reported = False
        if not isinstance(self.environment.runner, MasterRunner):
            self._inspect()
            self._background.spawn(self.recorder.watch_lag)
        if not isinstance(self.environment.runner, WorkerRunner):
            self._background.spawn(self.recorder.watch_history, self._publish)
            if self._is_timed_here and self.environment.shape_class is None:
                self._timer = gevent.spawn(self._end_when_over)
        self.began_at_s = time.time()

    def _inspect(self) -> None:
        fetch = fetcher(self.environment.host or "", os.environ.get("API_KEY", ""))
        try:
            self.deployment = inspect(fetch, self.options.model)
        except DeploymentError as error:
            self.give_up(error)
            return
        self.recorder.uses(self.deployment)

    def give_up(self, error: DeploymentError | TraceError) -> None:
        """End the run: there is nothing to test, or the scenario cannot be used."""
        log.error("%s", error)
        self.deployment = None
        self.environment.process_exit_code = CANNOT_RUN
        gevent.spawn(self.environment.runner.quit)

    def _publish(self, moment: dict[str, Any]) -> None:
        if len(self.recorder.history) % _PUBLISH_EVERY == 0:
            log.info("%s", report.moment_line(moment))

    def _end_when_over(self) -> None:
        """The time counts from the first user on, or from when there should have been one. The
        web UI goes on, and times what it starts itself, unless it is to quit by itself."""
        runner, options = self.environment.runner, self.options
        with gevent.Timeout(_FIRST_USER_S, False):
            while not runner.user_count:
                gevent.sleep(_LOOK_EVERY_S)
        log.info("the load lasts %g s", options.duration_s)
        gevent.sleep(options.duration_s)
        if not options.headless:
            self._is_timed_here, options.run_time = False, options.duration_s
            runner.stop()
            if options.autoquit == -1:
                return
            gevent.sleep(options.autoquit)
        runner.quit()
        if self.environment.web_ui is not None:
            self.environment.web_ui.stop()

    def _on_stop(self, **_: Any) -> None:
        self._background.kill(block=False)
        if self._timer is not None and self._timer is not gevent.getcurrent():
            self._timer.kill(block=False)
        if isinstance(self.environment.runner, WorkerRunner):
            return
        if not self.options.headless:
            self._end()  # the web UI goes on
        elif isinstance(self.environment.runner, MasterRunner):
            self._await_last_reports()

    def _await_last_reports(self) -> None:
        """Locust's master gives its workers half a second for it; their answers may take longer."""
        runner = self.environment.runner
        runner.send_message("quit")
        with gevent.Timeout(self.environment.stop_timeout + _LAST_REPORT_S, False):
            while runner.clients.all:
                gevent.sleep(_LOOK_EVERY_S)

    # the end

    def summary(self) -> dict[str, Any]:
        """The summary of the run so far."""
        rows = self.recorder.rows()
        ended_at_s = self.environment.stats.last_request_timestamp or self.began_at_s
        duration_s = max(ended_at_s - self.began_at_s, 0.0)
        together = summary.summarize_kind(rows, summary.ALL, duration_s)
        lag_ms = rows.get((summary.GENERATOR, summary.LAG), summary.Row()).percentiles()
        together["lag_ms"] = lag_ms
        verdicts = verdict.evaluate(self.scenario.slo, together)
        load = self._load()
        found = {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "host": self.environment.host,
            "model": self.recorder.model,
            "began_at_s": self.began_at_s,
            "duration_s": duration_s,
            "load": {"shape": load.shape, "users": load.users, "duration_s": load.duration_s},
            "num_processes": self.options.num_shards,
            "notes": [*self.recorder.notes, *self._kinds_without_users(rows, load)],
            "is_kept": bool(together["requests"]) and all(one.is_kept for one in verdicts),
            "slo": [verdict.as_dict(one) for one in verdicts],
            "goodput_limits": {
                kind: self.scenario.goodput_limits_ms(kind) for kind in summary.kind_names(rows)
            },
            "all": together,
            "kinds": [
                summary.summarize_kind(rows, kind, duration_s) for kind in summary.kind_names(rows)
            ],
            "percentiles_over_time": list(self.recorder.history),
            "rates_over_time": summary.rates_over_time(
                rows, int(self.began_at_s), int(ended_at_s) + 1, int(HISTORY_EVERY_S)
            ),
            "typical_requests": summary.typical(self.recorder.samples.kept),
            "slowest_requests": list(self.recorder.slowest.kept),
            "traces_url": self.options.traces,
            "errors": self._errors(),
            "generator": {"lag_ms": lag_ms, "max_cpu_percent": self.recorder.max_cpu_percent},
            "comparison": [],
        }
        return found if self._baseline is None else self._compared(found, self._baseline)

    def _compared(self, now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        """The summary with what became worse than in the earlier run, which does not pass."""
        rows = baseline.compare(before, now, self.options.tolerance)
        other = baseline.differences(before, now)
        is_kept = now["is_kept"] and bool(rows) and not any(row["is_worse"] for row in rows)
        notes = [*now["notes"], *other]
        return {**now, "comparison": rows, "is_kept": is_kept, "notes": notes}

    def _kinds_without_users(self, rows: Rows, load: Load) -> list[str]:
        """A sentence about kinds that nobody was, because there were fewer users than weights."""
        kinds = self.scenario.kinds
        missing = sorted(set(kinds) - set(summary.kind_names(rows)))
        if not missing or load.shape == REPLAY:
            return []
        enough = sum(kind.weight for kind in kinds.values())
        why = "none was answered in time"
        if load.users < enough:
            why = f"{load.users} users are too few for the weights, --users {enough} has all"
        return [f"no request of {', '.join(missing)}: {why}"]

    def _errors(self) -> list[dict[str, Any]]:
        errors = sorted(
            self.environment.stats.errors.values(), key=lambda error: -error.occurrences
        )
        return [
            {"kind": error.name, "error": str(error.error), "num": error.occurrences}
            for error in errors[:_MAX_SHOWN_ERRORS]
        ]

    def _on_quitting(self, **_: Any) -> None:
        if self.environment.process_exit_code == CANNOT_RUN:
            return
        if not self.recorder.model:
            log.error("the test was over before any process had found what to test")
            self.environment.process_exit_code = CANNOT_RUN
            return
        if self.options.headless or not self._is_reported:
            self._end()

    def _end(self) -> None:
        """Tell the verdict and write the report."""
        if not self.recorder.model:
            return
        self._is_reported = True
        found = self.summary()
        self.environment.process_exit_code = KEPT if found["is_kept"] else NOT_KEPT
        print(report.text(found), flush=True)
        if self.options.report:
            folder = Path(self.options.report)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "report.json").write_text(json.dumps(found, indent=1))
            (folder / "report.html").write_text(report.html(found))
            print(f"report: {folder}/report.html and report.json", flush=True)
