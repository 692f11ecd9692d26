"""The delivery of an answer to its client, with the times at which it happened."""

from collections.abc import Mapping

from services.gateway.openai.generation import Delta
from services.gateway.request.incoming import AnswerSink
from services.gateway.request.reports import TokenGaps
from services.gateway.request.timeline import Timeline
from services.gateway.request.trace import RequestTrace
from services.gateway.tenants.lease import Lease


class Delivery:
    """Hands one answer to its sink."""

    def __init__(
        self,
        sink: AnswerSink,
        lease: Lease,
        trace: RequestTrace,
        timeline: Timeline,
        token_gaps: TokenGaps,
    ) -> None:
        self._sink = sink
        self._lease = lease
        self._trace = trace
        self._timeline = timeline
        self._token_gaps = token_gaps

    async def begin(self, worker_stages: Mapping[str, float]) -> None:
        """Start the answer: an attempt's first token is there, or no token will come.
        `worker_stages`: the time that the worker spent up to there, in seconds."""
        if self._timeline.begin(worker_stages):
            await self._sink.started(self._trace.head(self._lease))

    async def deliver(self, deltas: list[Delta]) -> None:
        """Send new text, and wait until the client has taken it."""
        self._token_gaps.note()
        await self._sink.deltas(deltas)
        self._lease.num_produced = self._trace.usage.num_output_tokens
