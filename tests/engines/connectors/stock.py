"""The cases with vLLM's own NIXL connector: two engines that a client joins, as its proxies do."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from baton.localstack.ports import free_ports
from bench.serving.nixl_pair import link_nixl
from tests.engines.conftest import MODEL, VLLM_PYTHON
from tests.engines.connectors.outcomes import (
    ANSWER_LIMIT_S,
    DIED,
    HELD_LIMIT_S,
    NUM_TOKENS,
    RIGHT,
    Outcome,
    judge,
)

PROGRAM = Path(__file__).parent / "nixl_engine.py"
LOAD_TIMEOUT_S = 600.0
KV_BYTES = 8 * 2**20
PULL, PUSH = "NixlConnector", "NixlPushConnector"
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class EngineDied(Exception):
    """Its process has ended."""


class StockEngine:
    """One process of nixl_engine.py."""

    def __init__(self, folder: Path, connector: str = PULL, block_size: int = 32, port: int = 0):
        self.port = port or free_ports(1)[0]
        options = {
            "model": str(MODEL),
            "connector": connector,
            "block_size": block_size,
            "kv_bytes": KV_BYTES,
            "port": self.port,
        }
        self._names = count()
        self._answers: dict[str, dict[str, Any]] = {}
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._changed = threading.Condition()
        links = link_nixl(folder)
        with (folder / "stock.log").open("ab") as log:
            self.process = subprocess.Popen(
                [VLLM_PYTHON, str(PROGRAM), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(links)},
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_loaded(self) -> None:
        self.num_free_at_rest = self._free.get(timeout=LOAD_TIMEOUT_S)

    def add(self, prompt: list[int], num_tokens: int, params: Any = None, salt: str = "") -> str:
        """Ask; the request's name. Without a salt it has one of its own."""
        name = f"{self.port}-{next(self._names)}"
        add = {"add": name, "prompt": prompt, "num_tokens": num_tokens, "params": params}
        self._send({**add, "salt": salt or name})
        return name

    def answer(self, name: str) -> dict[str, Any] | None:
        """The end of a request, None where it does not come. Raises EngineDied."""
        with self._changed:
            self._changed.wait_for(
                lambda: name in self._answers or not self.is_alive, ANSWER_LIMIT_S
            )
        if name not in self._answers and not self.is_alive:
            raise EngineDied
        return self._answers.get(name)

    def text(self, prompt: list[int], params: Any = None, salt: str = "") -> list[int] | None:
        """A whole answer."""
        done = self.answer(self.add(prompt, NUM_TOKENS, params, salt))
        return done["tokens"] if done else None

    def prefill(self, prompt: list[int]) -> dict[str, Any]:
        """Prefill and hold; what a decode engine has to be told."""
        done = self.answer(self.add(prompt, 1, dict(PREFILL)))
        assert done
        return dict(done["params"])

    def num_held(self) -> int:
        """Blocks that do not become free within HELD_LIMIT_S. Raises EngineDied."""
        end_s = time.monotonic() + HELD_LIMIT_S
        while (held := self.num_free_at_rest - self._num_free()) and time.monotonic() < end_s:
            time.sleep(0.1)
        return held

    def give_up(self, name: str) -> None:
        self._send({"abort": name})

    def stand_still(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def _num_free(self) -> int:
        self._send({"free": True})
        try:
            return self._free.get(timeout=ANSWER_LIMIT_S)
        except queue.Empty:
            if self.is_alive:
                return 0  # it answers nothing
            raise EngineDied from None

    def _send(self, command: dict[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EngineDied from None

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line)
            if "free" in message:
                self._free.put(message["free"])
                continue
            with self._changed:
                self._answers[message["id"]] = message
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()


class StockCases:
    """The cases, in an order in which each needs as few engines as can be."""

    def __init__(self, folder: Path, prompts: list[list[int]]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._folder = folder
        self._prompts = prompts

    def run(self) -> dict[str, Outcome]:
        with ExitStack() as undo:
            prefill, decode, wide = self._start(undo, {}, {}, {"block_size": 64})
            self._try("none", decode, lambda: prefill.prefill(self._prompts[0]))
            prompt = self._prompts[1]
            self._try("sizes", wide, lambda: prefill.prefill(prompt), prompt)
            wide.kill()
            self._foreign(prefill, decode)
            self._replayed(prefill, decode)
            self._hung(prefill, decode)
            self._killed(undo, prefill, decode)
        with ExitStack() as undo:
            (push,) = self._start(undo, {"connector": PUSH})
            self._pushed(push)
        return self.outcomes

    def _start(self, undo: ExitStack, *options: dict[str, Any]) -> list[StockEngine]:
        engines = [StockEngine(self._folder, **each) for each in options]
        for engine in engines:
            undo.callback(engine.kill)
        for engine in engines:
            engine.wait_until_loaded()
        return engines

    def _try(
        self,
        case: str,
        decode: StockEngine,
        prepare: Callable[[], Any],
        prompt: list[int] | None = None,
    ) -> None:
        """Ask the decode engine with the parameters that are prepared, and note what comes."""
        prompt = prompt or self._prompts[0]
        right = decode.text(prompt)
        assert right
        salt, params = f"salt of {case}", prepare()
        began_s = time.monotonic()
        try:
            name = decode.add(prompt, NUM_TOKENS, params, salt)
            done = decode.answer(name)
            seconds = time.monotonic() - began_s
            if done is None:
                decode.give_up(name)
            answer = judge(done and done["tokens"], right)
            if done and done["reason"] not in ("length", "stop"):
                answer = f"refused: {done['reason']}"
            held = decode.num_held()
            later = judge(decode.text(prompt, salt=salt), right)
        except EngineDied:
            self.outcomes[case] = Outcome(DIED, time.monotonic() - began_s, RIGHT)
            return
        self.outcomes[case] = Outcome(answer, seconds, later, held)

    def _foreign(self, prefill: StockEngine, decode: StockEngine) -> None:
        """Parameters come from clients: this one names another's blocks with its own prompt."""
        self._try("foreign", decode, lambda: prefill.prefill(self._prompts[2]), self._prompts[3])

    def _replayed(self, prefill: StockEngine, decode: StockEngine) -> None:
        def use_and_overwrite() -> Any:
            params = prefill.prefill(self._prompts[4])
            assert decode.text(self._prompts[4], dict(params))
            for number in range(6):  # the pool is filled with others' blocks
                prefill.text([(number * 100 + place) % 1000 for place in range(600)])
            return params

        self._try("replayed", decode, use_and_overwrite, self._prompts[4])

    def _hung(self, prefill: StockEngine, decode: StockEngine) -> None:
        def hang() -> Any:
            params = prefill.prefill(self._prompts[5])
            prefill.stand_still()
            return params

        self._try("hung", decode, hang, self._prompts[5])
        prefill.process.send_signal(signal.SIGCONT)

    def _killed(self, undo: ExitStack, prefill: StockEngine, decode: StockEngine) -> None:
        if not decode.is_alive or decode.num_held():
            (decode,) = self._start(undo, {})
            decode.text(self._prompts[0], prefill.prefill(self._prompts[0]))
        second = prefill.prefill(self._prompts[7])

        def kill() -> Any:
            params = prefill.prefill(self._prompts[6])
            prefill.kill()
            return params

        self._try("killed", decode, kill, self._prompts[6])
        if decode.is_alive:
            self._start(undo, {"port": prefill.port})
            self._try("restarted", decode, lambda: second, self._prompts[7])

    def _pushed(self, decode: StockEngine) -> None:
        """Decode first, as Baton does it: the connector that is pushed to."""
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "nobody",
            "remote_request_id": "nothing",
            "remote_host": "127.0.0.1",
            "remote_port": free_ports(1)[0],
            "tp_size": 1,
        }
        self._try("never", decode, lambda: dict(params))
        params.pop("remote_request_id")
        self._try("parameter", decode, lambda: params)
