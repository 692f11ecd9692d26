"""A decode worker in memory: answers every submit with a given text, within its credit."""

import asyncio
from array import array
from collections.abc import Callable, Iterable

from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import MemoryStream
from baton.wire.failures import BatonError, to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import worker_pb2

EOS = 256


def told_of(index: int, token_id: int, num_top: int) -> worker_pb2.TokenLogprobs:
    """Likeliest: the token itself, then the ids after it."""
    return worker_pb2.TokenLogprobs(
        index=index,
        logprob=-0.5 * index,
        top_ids=[token_id + place for place in range(num_top)],
        top_logprobs=[-0.5 * index - place for place in range(num_top)],
        rank=1,
    )


class OpenChoices:
    """The credit of each choice, by (handle, choice), and the choices that were cancelled."""

    def __init__(self) -> None:
        self._credit: dict[tuple[int, int], int] = {}
        self._cancelled: set[tuple[int, int]] = set()
        self._changed = asyncio.Event()

    def open(self, key: tuple[int, int], credit: int) -> None:
        """Begin with this credit, unless a grant came first."""
        self._credit.setdefault(key, credit)

    def grant(self, key: tuple[int, int], up_to: int) -> None:
        self._credit[key] = up_to
        self._wake()

    def cancel(self, handle: int, choices: Iterable[int]) -> None:
        self._cancelled |= {(handle, choice) for choice in choices}
        self._wake()

    async def may_write(self, key: tuple[int, int], index: int) -> bool:
        """Wait for credit for this token; False once the choice is cancelled."""
        while index >= self._credit[key] and key not in self._cancelled:
            await self._changed.wait()
        return key not in self._cancelled

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class FakeWorker:
    """A decode worker that answers every submit with `texts`, one per choice (repeated).

    Half of its attributes are its script, which a test sets; the others are what it received and
    did, which a test reads.
    """

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.texts: list[str | bytes] = ["Hello there."]
        self.ends = True
        self.step_s = 0.01
        self.prefill_s = 0.05
        self.num_cached = 0
        self.prefill_stages: dict[str, float] = {}
        self.refusal: BatonError | None = None
        self.submits: list[worker_pb2.Submit] = []
        self.cancels: list[worker_pb2.Cancel] = []
        self.choice_cancels: list[worker_pb2.CancelChoices] = []
        self.credit_frames: list[worker_pb2.Credits] = []
        self.takes_half_of_the_prompt_logprobs = False
        self.keeps_finish = False
        # The prompt's first token, and how many tokens it has.
        self.vector_of: Callable[[worker_pb2.Submit], list[float]] = lambda submit: [
            submit.prompt_ids[0],
            submit.num_prompt_tokens,
        ]
        self.num_dialled = 0
        self.num_prefilling = 0
        # Tokens written, by (handle, choice).
        self.num_written: dict[tuple[int, int], int] = {}
        self.streams: list[MemoryStream] = []
        self.said_bye = False
        self._num_received = 0
        self.choices = OpenChoices()
        self._writing = asyncio.Lock()

    async def serve(self, stream: MemoryStream, tasks: asyncio.TaskGroup) -> None:
        self.num_dialled += 1
        self.said_bye = False
        self.streams.append(stream)
        try:
            while (frame := await stream.read()) is not None:
                await self._take_in(frame, stream, tasks)
                if self.said_bye:
                    await stream.close()
                    return
        except StreamLost:
            return

    async def say(self, frame: worker_pb2.WorkerFrame) -> None:
        """Write a frame on the newest stream."""
        await self._write(self.streams[-1], frame)

    def cut(self) -> None:
        """Lose the newest stream."""
        self.streams[-1].cancel()

    async def _take_in(
        self, frame: worker_pb2.GatewayFrame, stream: MemoryStream, tasks: asyncio.TaskGroup
    ) -> None:
        kind = frame.WhichOneof("frame")
        self._num_received = frame.seq
        if kind == "hello":
            hello = worker_pb2.WorkerHello(protocol=PROTOCOL_VERSION, worker_id=self.worker_id)
            await self._write(stream, worker_pb2.WorkerFrame(hello=hello))
        elif kind == "submit":
            self.submits.append(frame.submit)
            tasks.create_task(self._answer(frame.submit, stream))
        elif kind == "credits":
            self.credit_frames.append(frame.credits)
            columns = (frame.credits.handles, frame.credits.choices, frame.credits.up_to_index)
            for handle, choice, up_to in zip(*columns, strict=True):
                self.choices.grant((handle, choice), up_to)
        elif kind == "cancel":
            self.cancels.append(frame.cancel)
            for submit in self.submits:
                if submit.request_id == frame.cancel.request_id:
                    self.choices.cancel(submit.handle, range(submit.sampling.num_choices))
        elif kind == "cancel_choices":
            self.choice_cancels.append(frame.cancel_choices)
            self.choices.cancel(frame.cancel_choices.handle, frame.cancel_choices.choices)
        elif kind == "bye":
            self.said_bye = True

    async def _answer(self, submit: worker_pb2.Submit, stream: MemoryStream) -> None:
        try:
            if self.refusal is not None:
                refused = worker_pb2.Refused(
                    request_id=submit.request_id,
                    epoch=submit.epoch,
                    handle=submit.handle,
                    failure=to_wire(self.refusal),
                )
                await self._write(stream, worker_pb2.WorkerFrame(refused=refused))
                return
            self.num_prefilling += 1
            await asyncio.sleep(self.prefill_s)
            self.num_prefilling -= 1
            if submit.pools:
                await self._tell_vector(submit, stream)
                return
            async with asyncio.TaskGroup() as tasks:
                for choice in range(submit.sampling.num_choices):
                    if choice in submit.ended_choices:
                        continue
                    tasks.create_task(self._write_choice(submit, choice, stream))
        except* StreamLost:
            pass

    async def _write_choice(
        self, submit: worker_pb2.Submit, choice: int, stream: MemoryStream
    ) -> None:
        text = self.texts[choice % len(self.texts)]
        data = text.encode() if isinstance(text, str) else text
        ids = list(data) + ([EOS] if self.ends else [])
        key = (submit.handle, choice)
        begun = [len(each.token_ids) // 4 for each in submit.emitted if each.choice == choice]
        start = sum(begun)
        self.choices.open(key, start + submit.initial_credit_tokens)
        max_tokens = submit.sampling.max_tokens
        if choice == 0:
            await self._judge(submit, stream)
        for index, token_id in list(enumerate(ids[:max_tokens]))[start:]:
            if not await self.choices.may_write(key, index):
                await self._finish(stream, key, "cancelled", index)
                return
            step = self._step(submit, choice, index, token_id, is_first=index == start)
            await self._write(stream, worker_pb2.WorkerFrame(step=step))
            self.num_written[key] = index + 1 - start
            await asyncio.sleep(self.step_s)
        if self.keeps_finish:
            return
        if self.ends or len(ids) >= max_tokens:
            reason = "stop" if self.ends and len(ids) <= max_tokens else "length"
            await self._finish(stream, key, reason, min(len(ids), max_tokens))

    async def _tell_vector(self, submit: worker_pb2.Submit, stream: MemoryStream) -> None:
        step = worker_pb2.Step()
        side = step.side.add(handle=submit.handle)
        side.prefill.num_cached_tokens = self.num_cached
        side.finish.reason = "stop"
        side.finish.vector = array("f", self.vector_of(submit)).tobytes()
        await self._write(stream, worker_pb2.WorkerFrame(step=step))

    async def _judge(self, submit: worker_pb2.Submit, stream: MemoryStream) -> None:
        """Two frames with the prompt's logprobs, where they are wanted."""
        num_top = submit.sampling.num_prompt_logprobs
        if num_top < 0:
            return
        indexes = range(1, submit.num_prompt_tokens)
        for part in (indexes[:2], indexes[2:]):
            step = worker_pb2.Step()
            side = step.side.add(handle=submit.handle, choice=0)
            ids = submit.prompt_ids[::4]
            side.prompt_logprobs.extend(told_of(index, ids[index], num_top) for index in part)
            await self._write(stream, worker_pb2.WorkerFrame(step=step))
            if self.takes_half_of_the_prompt_logprobs:
                await asyncio.Event().wait()

    def _step(
        self, submit: worker_pb2.Submit, choice: int, index: int, token_id: int, *, is_first: bool
    ) -> worker_pb2.Step:
        step = worker_pb2.Step(
            handles=[submit.handle], choices=[choice], first_index=[index], ids=[token_id]
        )
        num_top = submit.sampling.num_logprobs
        if is_first or num_top >= 0:
            side = step.side.add(handle=submit.handle, choice=choice)
        if num_top >= 0:
            side.logprobs.append(told_of(index, token_id, num_top))
        if is_first:
            side.prefill.num_cached_tokens = self.num_cached
            for name, seconds in self.prefill_stages.items():
                side.prefill.stages.add(name=name, duration_us=round(seconds * 1e6))
        return step

    async def _finish(
        self, stream: MemoryStream, key: tuple[int, int], reason: str, count: int
    ) -> None:
        step = worker_pb2.Step()
        side = step.side.add(handle=key[0], choice=key[1])
        side.finish.reason = reason
        side.finish.num_output_tokens = count
        await self._write(stream, worker_pb2.WorkerFrame(step=step))

    async def _write(self, stream: MemoryStream, frame: worker_pb2.WorkerFrame) -> None:
        # One writer at a time, as gRPC wants it. Its own frames are not numbered: a stream that is
        # lost is not resumed.
        frame.ack = self._num_received
        async with self._writing:
            await stream.write(frame)
