"""Where copies end after their steps, the front is told of a block when it is in its row."""

import os
from collections.abc import Iterator

import pytest

from baton.engine.process.process_client import EngineSpec
from baton.engine.protocol.messages import Start
from tests.engines.conftest import VLLM_PYTHON, core_words
from tests.engines.driven_core import DrivenCore
from tests.engines.dying_core import PROMPT

OPTIONS = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def late() -> Iterator[DrivenCore]:
    """Two ranks, whose copies must all have ended."""
    core = DrivenCore(
        EngineSpec("tests.engines.devices.late_core", VLLM_PYTHON), core_words("vllm", 2)
    )
    yield core
    core.close()


def test_what_is_handed_over_has_left_the_cache_when_its_first_token_is_told(
    late: DrivenCore,
) -> None:
    whole = late.answer(PROMPT, **OPTIONS)
    # Other tenants': all of the prompt is computed here, and nothing of it is cached there.
    held, first = late.prefill(PROMPT, cache_key=os.urandom(32), **OPTIONS)
    sent = late.add(PROMPT, kind="remote", cache_key=os.urandom(32), **OPTIONS)
    late.bind(sent)
    assert late.admitted[sent] == 0
    late.copy_blocks(late, held, sent)
    late.send(Start(sent, first, ()))
    late.until(lambda: sent in late.finished)
    assert [first, *late.tokens[sent]] == whole
    late.release(held)


def test_a_prompt_that_is_given_up_while_it_is_copied_gives_its_rows_back(
    late: DrivenCore,
) -> None:
    given_up = [late.add(PROMPT, kind="prefill", cache_key=os.urandom(32), **OPTIONS) for _ in "ab"]
    late.end(*given_up)
    late.snapshot()
    assert late.load.num_rows_free == late.info.num_rows
