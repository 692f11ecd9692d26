"""A caller that leaves takes its work out of the tokenizer: out of the line before its threads, and
out of the hands of its children."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton.system.child import ABANDON_GRACE_S
from baton.system.clock import SystemClock
from services.tokenizer.__main__ import _thread_runner
from services.tokenizer.render_messages import RenderRequest, TemplateSetup
from services.tokenizer.template import ChildRenderer, RenderLimits

LOOP = "{% for i in range(messages | length) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x"


async def test_queued_encoding_of_a_caller_that_left_never_runs() -> None:
    ran: list[str] = []
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        run_in_thread = _thread_runner(executor)
        first = asyncio.ensure_future(run_in_thread(release.wait, 60))
        left = asyncio.ensure_future(run_in_thread(ran.append, "left"))
        stays = asyncio.ensure_future(run_in_thread(ran.append, "stays"))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        release.set()
        await asyncio.gather(first, stays)
    assert ran == ["stays"]


async def test_a_conversation_of_a_caller_that_left_is_not_rendered_to_its_end() -> None:
    limits = RenderLimits(num_children=1, deadline_s=60)
    renderer = ChildRenderer(TemplateSetup({"default": LOOP}, {}, [], []), SystemClock(), limits)
    await renderer.start()
    pid = renderer._children[0].pid
    many = b"[" + b",".join([b'{"role":"user","content":"x"}'] * 2000) + b"]"
    task = asyncio.ensure_future(renderer.render(RenderRequest(many, b"", b"", True)))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(ABANDON_GRACE_S + 60):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert renderer._children[0].pid != pid
    one = b'[{"role":"user","content":"x"}]'
    assert (await renderer.render(RenderRequest(one, b"", b"", True))).text == "x"
    await renderer.close()
