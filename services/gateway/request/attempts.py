"""The attempts of one request, one after the other, until all its choices have ended.

    pick -> submit -> first token -> tokens -> lost? pick again, without the worker that failed

There is no second way: a refusal, a loss before the first token and one in mid-stream all lead to
the next attempt, under a higher epoch. It begins behind the tokens that reached this gateway, which
are never sampled again; choices that ended are not run again. Text, stop strings, logprobs, credit
and the quota lease go on as they are: the client sees a pause, never a gap or a repeat.
"""

import asyncio

from baton.wire.failures import BatonError, DeadlineExceeded, Unavailable
from baton.wire.v1 import router_pb2
from services.gateway.openai.generation import Delta
from services.gateway.request import reports, submission
from services.gateway.request.answer_stream import AnswerStream
from services.gateway.request.parts import Parts
from services.gateway.request.state import Exchange, lease_of, request_of
from services.gateway.request.timeline import Timeline, call_context, stage
from services.gateway.workers.attempt import Attempt
from services.gateway.workers.credit import CreditMeter
from services.gateway.workers.migration import Place
from services.gateway.workers.worker_link import WorkerLink

# Attempts that may fail; the request fails with the last of them.
MAX_FAILURES = 3
# A worker that drains has not failed, but a request cannot move for ever.
MAX_PLANNED_MOVES = 8
MAX_EXCLUDED = 16
NO_WORKER_PAUSE_S = 0.5
# Nothing is wrong with the worker, and nothing was computed; there may be room in a moment.
REFUSALS = frozenset({"no_room", "prefill_refused"})
RETRIED_REASONS = REFUSALS | {"worker_lost", "draining", "unavailable", "handoff_failed"}
_OF_PREFILL = frozenset({"handoff_failed", "prefill_refused"})


class Answering:
    """Of one request that holds a lease. `run` once."""

    def __init__(self, x: Exchange, parts: Parts) -> None:
        request, progress = request_of(x), x.progress
        self._x = x
        self._parts = parts
        self._meter = CreditMeter(
            lease_of(x),
            num_choices=request.num_choices,
            max_tokens=progress.max_tokens,
            extension_tokens=parts.limits.default_output_reservation * request.num_choices,
        )
        progress.echo = submission.echo_of(x)
        progress.choices = submission.choice_texts(x)
        self._stream = AnswerStream(self._meter, progress.choices, parts.clock, progress.echo)
        self._timeline = Timeline(x, parts.clock)
        self._attempt: Attempt | None = None
        self._crashes = parts.links.crashes
        self._lease_changed = asyncio.Event()
        self._excluded: list[str] = []
        self._num_failures = 0
        self._num_planned_moves = 0
        # Whoever looks for a worker because one failed does so beside few others.
        self._place: Place | None = None
        self._is_crowded = False

    async def run(self) -> None:
        """Raises BatonError: what the last attempt or pick failed with."""
        lease = lease_of(self._x)
        lease.on_change = self._on_lease_change
        self._meter.ask_with(lambda num_wanted: self._parts.leases.ask(lease, num_wanted))
        try:
            while await self._goes_on():
                pick = await self._pick_or_wait()
                try:
                    await self._try(pick)
                except BatonError as error:
                    self._fail_or_go_on(error, pick)
            self._crashes.finished(self._x.progress.crashes)
            await self._timeline.begin(self._stream.prefill_stages)
            await self._stream.flush(self._deliver)
        finally:
            lease.on_change = lambda: None
            self._leave_place()
            self._timeline.end()

    async def _goes_on(self) -> bool:
        """Whether a choice is open. If so, the next token of each is paid for: with a prefill
        elsewhere it comes without asking for credit. Raises BatonError."""
        try:
            async with asyncio.timeout(max(self._x.deadlines.left_s, 0.0)):
                while self._stream.has_open_choices:
                    if lease_of(self._x).lost:
                        raise _lease_lost()
                    if self._meter.is_paid(submission.received(self._x)):
                        return True
                    await self._lease_changed.wait()
                    self._lease_changed.clear()
                    self._stream.end_starved()
        except TimeoutError:
            raise DeadlineExceeded("quota granted no more tokens in time") from None
        return False

    async def _pick_or_wait(self) -> router_pb2.PickResponse:
        """A stream that has begun waits for a worker until its next token is due: the only one may
        be starting again."""
        while True:
            try:
                return await self._pick()
            except BatonError as error:
                can_wait = self._x.deadlines.first_token_left_s > NO_WORKER_PAUSE_S
                if error.reason != "no_worker" or self._timeline.move is None or not can_wait:
                    raise
            await asyncio.sleep(NO_WORKER_PAUSE_S)

    async def _pick(self) -> router_pb2.PickResponse:
        x, clock = self._x, self._parts.clock
        if self._is_crowded:
            self._is_crowded = False
            self._place = await self._parts.moves.enter(x.deadlines.first_token_left_s)
        request = submission.pick_request(x, self._parts.server_secret)
        request.exclude_worker_ids.extend(self._excluded)
        request.has_begun = self._timeline.move is not None
        self._crashes.ask(x.progress.crashes, request)
        with stage(x, "pick", self._timeline.move) as span:
            span.set("baton.epoch", x.progress.num_attempts + 1)
            asked_s = clock.now()
            context = call_context(x, span, x.deadlines.first_token_left_s)
            pick = await self._parts.router.pick(request, context)
            self._crashes.picked(x.progress.crashes, pick)
            queue_s = min(pick.queue_us / 1e6, clock.now() - asked_s)
            span.set("baton.pick.reasons", pick.reasons)
        reports.of_queue(x, span, asked_s, queue_s)
        return pick

    async def _try(self, pick: router_pb2.PickResponse) -> None:
        x, progress = self._x, self._x.progress
        if lease_of(x).lost:
            raise _lease_lost()
        has_client_left = False
        progress.num_attempts += 1
        self._timeline.submit()
        link = self._parts.links.link_to(pick.decode)
        begun = submission.received(x)
        credit = self._meter.ahead(begun)
        attempt = link.submit(submission.submit_frame(x, pick, credit))
        self._attempt = attempt
        try:
            self._stream.follow(attempt)
            given = {choice: num + credit for choice, num in begun.items()}
            self._meter.attach(attempt.give, given)
            await self._await_first_token()
            await self._stream.run(self._deliver, x.deadlines.token_gap_s)
        except asyncio.CancelledError:
            has_client_left = True
            raise
        except BatonError as error:
            self._crashes.failed(progress.crashes, error, attempt.num_received)
            raise
        finally:
            await self._leave(attempt, link, has_client_left)

    async def _await_first_token(self) -> None:
        due = self._x.deadlines
        # A beam search brings its first token with its last.
        is_search = request_of(self._x).search is not None
        await self._stream.first(due.left_s if is_search else due.first_token_left_s)
        self._leave_place()
        await self._timeline.begin(self._stream.prefill_stages)

    async def _leave(self, attempt: Attempt, link: WorkerLink, has_client_left: bool) -> None:
        progress = self._x.progress
        self._attempt = None
        self._meter.detach()
        try:
            await self._stream.close()
        finally:
            link.forget(attempt)
            progress.num_received += attempt.num_received
            # A failure is also that the worker had not heard of it yet.
            was_at_work = has_client_left and attempt.failure is None
            progress.prompt_was_read |= attempt.num_received > 0 or was_at_work
            progress.took_cached(self._stream.num_cached)
            self._timeline.pause()

    def _fail_or_go_on(self, error: BatonError, pick: router_pb2.PickResponse) -> None:
        """An attempt failed: another one follows, or `error` is raised."""
        x, reason = self._x, error.reason
        self._num_planned_moves += reason == "draining"
        self._num_failures += reason not in REFUSALS and reason != "draining"
        x.progress.num_failed_attempts += reason not in REFUSALS
        # One more pick of a request that kills cores tells the router, which refuses it.
        most = MAX_FAILURES + x.progress.crashes.is_guilty
        is_too_often = self._num_failures >= most or self._num_planned_moves > MAX_PLANNED_MOVES
        if reason not in RETRIED_REASONS or is_too_often:
            raise error
        self._excluded = [*self._excluded[1 - MAX_EXCLUDED :], _at_fault(pick, error)]
        if reason not in REFUSALS:
            self._leave_place()
            self._is_crowded = True
        self._timeline.lose(reason, self._excluded[-1])
        if request_of(x).search is not None:
            # It begins anew, however long it took.
            x.deadlines.await_next_token()

    async def _deliver(self, deltas: list[Delta]) -> None:
        self._timeline.deliver()
        await self._x.sink.deltas(deltas)
        lease_of(self._x).num_produced = self._x.progress.num_output_tokens

    def _on_lease_change(self) -> None:
        self._meter.replenish()
        self._lease_changed.set()
        if self._attempt is not None:
            if lease_of(self._x).lost:
                self._attempt.abandon(_lease_lost())
            self._attempt.poke()

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.leave()


def _lease_lost() -> BatonError:
    return Unavailable("the quota lease was lost", reason="quota_unavailable")


def _at_fault(pick: router_pb2.PickResponse, error: BatonError) -> str:
    """The worker that the next pick shall avoid."""
    is_prefill = error.reason in _OF_PREFILL and pick.HasField("prefill")
    return pick.prefill.worker_id if is_prefill else pick.decode.worker_id
