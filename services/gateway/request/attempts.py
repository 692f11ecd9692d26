"""The attempts of one request, one after the other, until all its choices have ended.

    pick -> submit -> first token -> tokens -> lost? pick again, without the worker that failed

A refusal, a loss before the first token and one in mid-stream all lead to the next attempt, under a
higher epoch. It begins behind the tokens that reached this gateway, which are never sampled again;
choices that ended are not run again. Text, stop strings, logprobs, credit and the quota lease go on
as they are: the client sees a pause, never a gap or a repeat.
"""

import asyncio

from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2
from services.gateway.openai.generation import Usage
from services.gateway.request import reports
from services.gateway.request.answer_stream import AnswerStream, Delivery
from services.gateway.request.deps import AttemptDeps
from services.gateway.request.incoming import AnswerSink
from services.gateway.request.job import Job, begin_answer
from services.gateway.request.payment import CreditMeter, Payment
from services.gateway.request.picks import REFUSALS, Picks, Retries, at_fault
from services.gateway.request.reports import Timeline, TokenGaps
from services.gateway.request.submission import Submission
from services.gateway.request.trace import RequestTrace
from services.gateway.routing.crash_record import CrashRecord
from services.gateway.safety.screen import Screen
from services.gateway.tenants.lease import Lease
from services.gateway.workers.attempt import Attempt
from services.gateway.workers.worker_link import WorkerLink


class Attempts:
    """The attempts of one job that holds a lease. `run` them once."""

    def __init__(
        self, job: Job, lease: Lease, sink: AnswerSink, deps: AttemptDeps, trace: RequestTrace
    ) -> None:
        answer, usage = begin_answer(job), trace.usage
        usage.choices = answer.choices
        self._job = job
        self._trace = trace
        self._links = deps.links
        self._crash_record = CrashRecord()
        self._payment = Payment(lease, _meter(job, lease, deps), deps.leases)
        self._timeline = Timeline(trace, deps.clock)
        token_gaps = TokenGaps(trace.metered_name)
        lease.num_produced = lambda: usage.num_output_tokens
        delivery = Delivery(sink, lease, trace, self._timeline, token_gaps)
        self._stream = AnswerStream(answer, self._payment.meter, delivery, deps.clock)
        if deps.safety is not None:
            self._stream.screen = Screen(deps.safety, answer.choices, trace.judging)
        self._submission = Submission(job, answer, deps.server_secret)
        self._picks = Picks(self._submission, job.deadlines, self._crash_record, deps, trace)
        self._retries = Retries()

    async def run(self) -> Usage:
        """Make attempts until the answer is complete; returns its usage. Raises BatonError: the
        failure of the last attempt or pick."""
        try:
            with self._payment.following():
                while await self._goes_on():
                    pick = await self._picks.next(self._retries.excluded, self._timeline.migration)
                    try:
                        await self._try(pick)
                    except BatonError as error:
                        self._fail_or_go_on(error, pick)
                self._links.crashes.finished(self._crash_record)
                await self._stream.begin()
                await self._stream.flush()
        finally:
            self._picks.permit.release()
            self._timeline.end()
        reports.of_answer(self._trace)
        trace = self._trace
        return trace.usage.for_client(int(trace.started_unix_s + trace.timer.wall_s))

    async def _goes_on(self) -> bool:
        """Wait until quota pays for the next token of each open choice; False when none is open.

        With a prefill at another worker that token comes without credit. Raises BatonError.
        """
        if self._stream.answer.has_open_choices:
            self._payment.check()
            if self._payment.meter.is_paid(self._stream.answer.received()):
                return True
        due = self._job.deadlines
        try:
            async with asyncio.timeout(max(min(due.left_s, due.token_gap_s), 0.0)):
                while self._stream.answer.has_open_choices:
                    self._payment.check()
                    if self._payment.meter.is_paid(self._stream.answer.received()):
                        return True
                    await self._payment.changed()
                    self._stream.end_starved()
        except TimeoutError:
            raise self._payment.overdue() from None
        return False

    async def _try(self, pick: router_pb2.PickResponse) -> None:
        self._payment.check()
        self._trace.usage.num_submits += 1
        self._timeline.submit()
        link = self._links.link_to(pick.decode)
        begun = self._stream.answer.received()
        credit = self._payment.meter.ahead(begun)
        attempt = self._submit(link, pick, credit)
        has_client_left = has_failed = False
        failure: BaseException | None = None
        try:
            self._stream.follow(attempt)
            self._payment.attach(attempt, {n: num + credit for n, num in begun.items()})
            with self._payment.explaining(self._stream.answer.received):
                await self._await_first_token(attempt)
                await self._stream.run(attempt, self._job.deadlines.token_gap_s)
        except asyncio.CancelledError as error:
            has_client_left, failure = True, error
            raise
        except BatonError as error:
            has_failed, failure = True, error
            self._links.crashes.failed(self._crash_record, error, attempt.num_received)
            raise
        finally:
            await self._leave(attempt, link, has_client_left)
            self._trace.usage.took_time(attempt.spent, attempt.num_received, has_failed=has_failed)
            refusal = None if attempt.num_received else failure
            self._timeline.leave(failure, _refused_by(pick, refusal))

    def _submit(self, link: WorkerLink, pick: router_pb2.PickResponse, credit: int) -> Attempt:
        submit = self._submission.submit_frame(pick)
        submit.epoch = self._trace.usage.num_submits
        submit.traceparent = self._trace.attempts.submit(pick, submit.epoch)
        submit.initial_credit_tokens = credit
        submit.is_suspect = self._crash_record.is_suspect
        return link.submit(submit)

    async def _await_first_token(self, attempt: Attempt) -> None:
        due = self._job.deadlines
        # The first token of a beam search comes with its last.
        is_search = self._job.request.search is not None
        await self._stream.first(attempt, due.left_s if is_search else due.first_token_left_s)
        self._picks.permit.release()
        await self._stream.begin()

    async def _leave(self, attempt: Attempt, link: WorkerLink, has_client_left: bool) -> None:
        usage = self._trace.usage
        self._payment.detach()
        try:
            await self._stream.close(attempt)
        finally:
            link.forget(attempt)
            usage.num_received += attempt.num_received
            # An attempt that the worker had not heard of yet has a failure, too.
            was_at_work = has_client_left and attempt.failure is None
            has_answered = attempt.num_received > 0 or self._stream.has_vector
            usage.prompt_was_read |= has_answered or was_at_work
            usage.took_cached(self._stream.num_cached)
            self._timeline.pause()

    def _fail_or_go_on(self, error: BatonError, pick: router_pb2.PickResponse) -> None:
        """Prepare another attempt after one that failed, or raise `error`."""
        is_refusal = error.reason in REFUSALS
        if not is_refusal:
            self._trace.usage.num_failed_attempts += 1
        worker_id = self._retries.note(error, pick, is_guilty=self._crash_record.is_guilty)
        if not is_refusal:
            self._picks.permit.require()
        is_migration = self._timeline.lose(error.reason, worker_id)
        # A beam search begins anew, however long it took.
        if is_migration or self._job.request.search is not None:
            self._job.deadlines.await_next_token()


def _refused_by(pick: router_pb2.PickResponse, failure: BaseException | None) -> str:
    """The worker that had no room for an attempt; empty where it ended otherwise."""
    if isinstance(failure, BatonError) and failure.reason in REFUSALS:
        return at_fault(pick, failure)
    return ""


def _meter(job: Job, lease: Lease, deps: AttemptDeps) -> CreditMeter:
    num_choices = job.request.num_choices
    return CreditMeter(
        lease,
        num_choices=num_choices,
        max_tokens=job.plan.max_tokens,
        extension_tokens=deps.limits.default_output_reservation * num_choices,
    )
