"""Health as progress: does the core move while it has something to do, and step when asked to?

The core shows on its progress page where it is. It stands still when a step, or a command, takes
longer than `stall_factor` times what the step should take; how full it is does not matter. While
nothing runs, a probe (`Probe` in `engine/protocol/messages.py`) makes it step now and then. Only
time in which the front itself ran is counted: a machine that pauses both does not make the core
look dead. Time in which the core waited for a CPU does not count either, up to a bound: beside
programs that take its CPUs it is slow, and to call it stalled would end its streams. Decides what
is the matter, not what to do about it; only a core that hangs for good is ended here, so that its
supervisor starts another (decision 0022).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from baton.engine.protocol.client import EngineClient
from baton.engine.protocol.messages import Probe
from baton.engine.protocol.progress_page import CoreProgress
from baton.runtime import logs
from baton.system.clock import Clock
from baton.worker import instruments

TICK_S = 0.1
# What a tick took longer than this was the front's own pause.
MAX_TICK_S = 0.3

_log = logs.get("worker.core_watch")


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """When a core stands still: after `stall_s`, or longer where its step should take long."""

    stall_s: float = 1.5
    # A stall is found in under 3 s with steps of up to 0.4 s, and in under 5 s with those of 0.8 s,
    # to which `engine/step/chunk_policy.py` lengthens steps by default.
    stall_factor: float = 6.0
    # For a step of a kind that never ran before: kernels are compiled, memory is touched.
    first_step_s: float = 60.0
    # One that stands still for so much longer is ended.
    hang_s: float = 10.0
    # A core that waits for a CPU is given so much more time in one step, and no more.
    max_starved_s: float = 60.0
    # An idle core is probed this often.
    probe_s: float = 3.0

    def limit_s(self, progress: CoreProgress) -> float:
        """How long what runs now may take; an idle core has only to take a command."""
        if progress.step and not progress.is_busy:
            return self.stall_s
        if progress.expected_s is None:
            return max(self.first_step_s, self.stall_s)
        return max(self.stall_s, self.stall_factor * progress.expected_s)


class CoreWatch:
    """Watches one core. `run` must run while the front does."""

    def __init__(
        self, client: EngineClient, clock: Clock, limits: WatchLimits | None = None
    ) -> None:
        self.is_stalled = False
        self._client = client
        self._clock = clock
        self._limits = limits or WatchLimits()
        self._listeners: list[Callable[[bool], None]] = []
        self._seen = (0, 0)
        # Since the core moved last: with something to do, and with nothing.
        self._still_s = 0.0
        self._idle_s = 0.0
        # Since then, and not counted in `_still_s`: it waited for a CPU.
        self._starved_s = 0.0

    def on_change(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` with True when the core stands still, with False when it moves again."""
        self._listeners.append(listener)

    def reason(self) -> str:
        """Why this worker cannot serve now; empty when it can."""
        if not self.is_stalled:
            return ""
        return f"the engine core has not moved for {self._still_s:.1f} s"

    async def run(self) -> None:
        """Watch the core until cancelled."""
        while True:
            began_s = self._clock.now()
            await asyncio.sleep(TICK_S)
            self.tick(min(self._clock.now() - began_s, MAX_TICK_S))

    def tick(self, elapsed_s: float) -> None:
        """Look at the core; the front has been awake for `elapsed_s` since the last look."""
        progress = self._client.progress()
        seen = (progress.step, progress.num_commands)
        is_owing = progress.is_busy or progress.num_commands < self._client.num_commands_sent
        limit_s = self._limits.limit_s(progress)
        if seen != self._seen:
            self._seen = seen
            self._still_s = self._idle_s = self._starved_s = 0.0
        elif is_owing:
            self._still_s += elapsed_s - self._count_starved(elapsed_s, limit_s)
        else:
            self._still_s = self._starved_s = 0.0
            self._probe_when_due(elapsed_s)
        self._check_progress(limit_s)

    def _count_starved(self, elapsed_s: float, limit_s: float) -> float:
        """The part of `elapsed_s` that is forgiven; looks only once half the limit has passed."""
        if self._still_s < limit_s / 2:
            return 0.0
        left_s = self._limits.max_starved_s - self._starved_s
        starved_s = min(self._client.starved_s(elapsed_s), left_s)
        was_in_time = self._still_s + self._starved_s <= limit_s
        self._starved_s += starved_s
        instruments.CORE_STARVED_SECONDS.inc(starved_s)
        if was_in_time and self._still_s + self._starved_s > limit_s:
            _log.warning("core_starved", step=self._seen[0], limit_s=round(limit_s, 3))
        return starved_s

    def _probe_when_due(self, elapsed_s: float) -> None:
        self._idle_s += elapsed_s
        if self._idle_s >= self._limits.probe_s:
            self._idle_s = 0.0
            self._client.send(Probe())

    def _check_progress(self, limit_s: float) -> None:
        is_stalled = self._still_s > limit_s
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            self._announce(limit_s)
        if self._still_s > limit_s + self._limits.hang_s:
            self._client.kill()

    def _announce(self, limit_s: float) -> None:
        if self.is_stalled:
            instruments.CORE_STALLS.inc()
            _log.error("core_stalled", step=self._seen[0], limit_s=round(limit_s, 3))
        else:
            _log.warning("core_moves_again", step=self._seen[0])
        for listener in self._listeners:
            listener(self.is_stalled)
