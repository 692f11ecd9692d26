"""The sending process of `bench/handoff/overlap.py`: a prefill worker with its core.

`python -m bench.handoff.engine_peer FOLDER MODEL THREADS TRANSPORT...`

Everything is the product's, but that no router knows of it. Prints one JSON line when it serves,
and ends with its standard input.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.handoff.block_bytes import KEPT_BYTES
from baton.runtime.grpc_server import start_server
from baton.system.allocator import keep_freed_memory
from baton.system.clock import SystemClock
from baton.system.parent_death import die_with_parent
from baton.wire.v1 import router_pb2
from baton.worker.program import CORE_MODULE, make_parts
from baton.worker.transports import HandoffOptions
from bench.handoff.handoff_pair import PEER_ID
from services.prefill_worker.__main__ import PrefillProgram

KV_MEMORY = "2GiB"


async def serve(folder: Path, model: str, threads: str, names: tuple[str, ...]) -> None:
    options = {"--model": model, "--threads": threads, "--kv-memory": KV_MEMORY, "--device": "cpu"}
    words = [word for option in options.items() for word in option]
    client = await ProcessEngineClient.start(EngineSpec(CORE_MODULE), words)
    deps = make_parts(
        client,
        worker_id=PEER_ID,
        role=router_pb2.WORKER_ROLE_PREFILL,
        clock=SystemClock(),
        handoff=HandoffOptions(names, folder),
    )
    front = PrefillProgram(deps)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(front.run())
        server = await start_server("127.0.0.1:0", front.register)
        print(json.dumps({"port": server.port, "model_fp": client.info.model_fp}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0)
        running.cancel()
    await client.close()


def main(argv: Sequence[str]) -> None:
    die_with_parent()
    keep_freed_memory(KEPT_BYTES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(argv[0]), argv[1], argv[2], tuple(argv[3:])))


if __name__ == "__main__":
    main(sys.argv[1:])
