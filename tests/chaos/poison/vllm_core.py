"""A worker's core with vLLM's engine, which dies of one prompt (prompt.py).

Run by worker.py; no product code knows it. What it imports knows nothing of vLLM: its environment
has to be set before.
"""

import argparse
import os
import signal
import sys
from typing import Any

from baton.engine.process.core import CoreLink
from baton.engines.vllm import core_main
from baton.system.load_progress import Tell
from tests.chaos.poison.prompt import POISON_PROMPT

_build = core_main._build


def build_poisoned(options: argparse.Namespace, link: CoreLink, tell: Tell) -> Any:
    """As `core_main._build`: an engine that ends its process in a step with the poison."""
    engine = _build(options, link, tell)
    on_scheduled = engine.on_scheduled

    def die_of_poison(scheduled: Any) -> None:
        on_scheduled(scheduled)
        if any(is_poison(new.prompt_token_ids) for new in scheduled.scheduled_new_reqs):
            os.kill(os.getpid(), signal.SIGSEGV)

    engine.on_scheduled = die_of_poison
    return engine


def is_poison(token_ids: list[int]) -> bool:
    size = len(POISON_PROMPT)
    starts = range(len(token_ids) - size + 1)
    return any(token_ids[start : start + size] == POISON_PROMPT for start in starts)


if __name__ == "__main__":
    core_main._build = build_poisoned
    status = core_main.main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
