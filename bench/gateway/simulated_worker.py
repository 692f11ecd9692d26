"""A decode worker without an engine: tokens come at the pace that the request's seed names.

The streams to gateways and routers are the product's, with its merging of steps and its credit.
Every token is a word of its own with one space, so that a client can count tokens in any stream.
Run by `bench/gateway/simulated_stack.py`.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc

from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.runtime import environment
from baton.runtime.grpc_server import start_server
from baton.runtime.process import Process, run
from baton.runtime.shared_stream import ServerFrameStream
from baton.system.clock import SystemClock
from baton.wire.model_files import ModelFiles, read_model_files
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2, worker_pb2_grpc
from baton.worker.files.servicer import WorkerFilesServicer
from baton.worker.reports import ReportLog
from baton.worker.reports_servicer import WorkerReportsServicer
from baton.worker.settings import ENVIRONMENT_PREFIX, Settings
from bench.gateway.pace import AnswerPace
from bench.workload import WordList
from services.decode_worker.gateway_link import GatewayLink, LinkKey

MAX_MODEL_LEN = 131_072
# The stage of the worker in the header Server-Timing.
OWN_STAGE = "simulated"
_MAX_NUM_SEQS = 4096
_NUM_BLOCKS = 1_000_000
_BLOCK_SIZE = 16
_NUM_WORDS = 64


@dataclass(slots=True, eq=False)
class Answer:
    """One answer that is produced, or waits for credit."""

    submit: worker_pb2.Submit
    credit: int
    words: Iterator[int]
    index: int = 0

    @property
    def handle(self) -> int:
        return self.submit.handle

    @property
    def is_complete(self) -> bool:
        return self.index >= self.submit.sampling.max_tokens


class Steps:
    """The answers of one pace on one link, all of which get a token in each step."""

    def __init__(self, step_s: float, link: GatewayLink, on_end: Callable[[Answer], None]) -> None:
        self.answers: dict[int, Answer] = {}
        self._step_s = step_s
        self._link = link
        self._on_end = on_end
        self._due_s = 0.0

    def add(self, answer: Answer) -> None:
        self.answers[answer.handle] = answer
        if len(self.answers) == 1:
            self._due_s = time.monotonic()
            self._wait()

    def _wait(self) -> None:
        """Set a timer for the next step; a machine that is behind skips steps."""
        now = time.monotonic()
        self._due_s = max(self._due_s + self._step_s, now)
        asyncio.get_running_loop().call_later(self._due_s - now, self._step)

    def _step(self) -> None:
        for answer in list(self.answers.values()):
            emit(answer, self._link)
            if answer.is_complete:
                del self.answers[answer.handle]
                self._on_end(answer)
        self._link.wake()
        if self.answers:
            self._wait()


def emit(answer: Answer, link: GatewayLink) -> None:
    """The answer's next token, if there is credit for it."""
    if answer.index < answer.credit:
        link.merge.add_token((answer.handle, 0), answer.index, next(answer.words))
        answer.index += 1


class SimulatedSession:
    """One gateway's answers."""

    def __init__(self, key: LinkKey, words: list[int], reports: ReportLog) -> None:
        self.link = GatewayLink(key, self._on_frame, self._on_change)
        self._words = words
        self._reports = reports
        self._answers: dict[int, Answer] = {}
        self._handles: dict[str, int] = {}
        self._steps: dict[int, Steps] = {}

    def _on_change(self) -> None:
        if self.link.is_over:
            for handle in list(self._answers):
                self._drop(handle)

    def _on_frame(self, frame: worker_pb2.GatewayFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "submit":
            self._submit(frame.submit)
        elif kind == "credits":
            for handle, up_to in zip(frame.credits.handles, frame.credits.up_to_index, strict=True):
                if handle in self._answers:
                    self._answers[handle].credit = up_to
        elif kind == "cancel":
            handle = self._handles.get(frame.cancel.request_id, 0)
            if handle:
                self._finish(handle, "cancelled")
                self.link.wake()

    def _submit(self, submit: worker_pb2.Submit) -> None:
        self._reports.accepted(submit.request_id)
        pace = AnswerPace.of_seed(submit.sampling.seed)
        words = cycle(self._words[submit.handle % len(self._words) :] + self._words)
        answer = Answer(submit, submit.initial_credit_tokens, words)
        self._answers[submit.handle] = answer
        self._handles[submit.request_id] = submit.handle
        came_s = time.monotonic()
        if pace.prefill_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(pace.prefill_ms / 1000, self._begin, answer, pace, came_s)
        else:
            self._begin(answer, pace, came_s)

    def _begin(self, answer: Answer, pace: AnswerPace, came_s: float) -> None:
        """The first token, and the time that it took here."""
        if answer.handle not in self._answers:
            return
        emit(answer, self.link)
        duration_us = round((time.monotonic() - came_s) * 1e6)
        stage = worker_pb2.PrefillSummary(stages=[{"name": OWN_STAGE, "duration_us": duration_us}])
        self.link.merge.add_prefill((answer.handle, 0), stage)
        if answer.is_complete:
            self._finish(answer.handle, "length")
        else:
            self._steps_of(pace).add(answer)
        self.link.wake()

    def _steps_of(self, pace: AnswerPace) -> Steps:
        if pace.step_us not in self._steps:
            step_s = pace.step_us / 1e6
            self._steps[pace.step_us] = Steps(step_s, self.link, self._ended)
        return self._steps[pace.step_us]

    def _ended(self, answer: Answer) -> None:
        self._finish(answer.handle, "length")

    def _finish(self, handle: int, reason: str) -> None:
        answer = self._drop(handle)
        finish = worker_pb2.Finish(reason=reason, num_output_tokens=answer.index)
        self.link.merge.add_finish((handle, 0), finish)

    def _drop(self, handle: int) -> Answer:
        answer = self._answers.pop(handle)
        self._handles.pop(answer.submit.request_id, None)
        for steps in self._steps.values():
            steps.answers.pop(handle, None)
        return answer


class SimulatedWorker(worker_pb2_grpc.DecodeWorkerServicer):
    """The worker's side for gateways. It is never full."""

    def __init__(self, words: list[int], reports: ReportLog) -> None:
        self._words = words
        self._reports = reports
        self._sessions: dict[LinkKey, SimulatedSession] = {}

    async def Serve(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        stream: ServerFrameStream[worker_pb2.WorkerFrame] = ServerFrameStream(context)
        first = await stream.read()
        if first is None:
            return
        hello, register = first.hello, self._reports.register
        key = (hello.gateway_id, hello.link)
        if key not in self._sessions:
            self._sessions[key] = SimulatedSession(key, self._words, self._reports)
        answer = worker_pb2.WorkerHello(
            protocol=PROTOCOL_VERSION,
            worker_id=register.worker_id,
            boot_epoch=register.boot_epoch,
            model_fp=register.model_fp,
        )
        await self._sessions[key].link.serve(stream, hello, answer)


def make_reports(settings: Settings, files: ModelFiles) -> ReportLog:
    """Reports of a worker with room for everything, whose load never changes."""
    folder = Path(settings.model)
    config = json.loads((folder / "config.json").read_text())
    register = worker_pb2.Register(
        protocol=PROTOCOL_VERSION,
        worker_id=settings.worker_id,
        boot_epoch=time.time_ns(),
        role=router_pb2.WORKER_ROLE_DECODE,
        model_fp=files.fingerprint,
        model_name=settings.model_name,
        kv_spec_digest="simulated",
        block_size=settings.block_size or _BLOCK_SIZE,
        num_blocks=_NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=_MAX_NUM_SEQS,
        vocab_size=config["vocab_size"],
        eos_token_ids=[config["eos_token_id"]],
        block_bytes=1,
    )
    idle = EngineLoad(0, 0, _NUM_BLOCKS, 0, 0, 100_000.0, 0.001)
    snapshot = StepEvents(1, idle, snapshot=b"")
    reports = ReportLog(register, lambda: reports.apply(snapshot), SystemClock())
    reports.apply(StepEvents(1, idle))
    return reports


async def serve(process: Process, settings: Settings) -> None:
    """Serve until a signal."""
    folder = Path(settings.model)
    files = read_model_files(folder)
    reports = make_reports(settings, files)
    words = WordList.of_tokenizer(folder / "tokenizer.json")
    worker = SimulatedWorker(words.token_ids("answer", _NUM_WORDS), reports)

    def register(server: grpc.aio.Server) -> None:
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(worker, server)
        worker_pb2_grpc.add_WorkerFilesServicer_to_server(WorkerFilesServicer(files), server)
        worker_pb2_grpc.add_WorkerReportsServicer_to_server(WorkerReportsServicer(reports), server)

    server = await start_server(settings.listen, register, link=True)
    await process.stopping.wait()
    reports.close()
    await server.stop(0)


def main() -> None:
    """Entry point of `python -m bench.gateway.simulated_worker`."""
    settings = environment.load(Settings, ENVIRONMENT_PREFIX)

    async def served(process: Process) -> None:
        await serve(process, settings)

    run("simulated_worker", served)


if __name__ == "__main__":
    main()
