"""Template children under attack: each limit holds, and the service goes on."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from baton.system.clock import SystemClock
from baton.wire.failures import InvalidRequest, Overloaded
from services.tokenizer.encoder import checked
from services.tokenizer.render_messages import (
    Fault,
    Rendered,
    RenderRequest,
    TemplateLimits,
    TemplateSetup,
)
from services.tokenizer.template import ChildRenderer, RenderLimits, TemplateRefused
from tests import needs

SOURCE = """
{%- set m = messages[0] -%}
{%- if m.spin %}{% for a in range(m.spin) %}{% for b in range(1000) %}{% endfor %}{% endfor %}
{%- elif m.power %}{{ (7 ** m.power) % 2 }}
{%- elif m.grow %}{{ ('x' * m.grow) | length }}
{%- elif m.write %}{% for a in range(m.write) %}{{ 'y' * 1000 }}{% endfor %}
{%- else %}<s>{{ m.content }}{% endif %}"""
SPECIAL = [("<s>", True)]
# Of wall time, where the processor time comes first, however busy the machine is.
PATIENCE_S = 60.0


def setup(source: str = SOURCE, **limits: float) -> TemplateSetup:
    return TemplateSetup({"default": source}, {}, SPECIAL, limits=TemplateLimits(**limits))


def request(**message: object) -> RenderRequest:
    return RenderRequest(json.dumps([{"role": "user", **message}]).encode())


async def failure(renderer: ChildRenderer, **message: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        checked(await renderer.render(request(**message)))
    assert caught.value.reason == "template_error"
    return caught.value.message


@pytest.fixture
async def renderer() -> AsyncIterator[ChildRenderer]:
    limits = RenderLimits(num_children=1, deadline_s=PATIENCE_S)
    renderer = ChildRenderer(setup(cpu_s=0.3), SystemClock(), limits)
    await renderer.start()
    yield renderer
    await renderer.close()


def pid_of(renderer: ChildRenderer) -> int | None:
    return renderer._children[0].pid


async def test_child_tells_control_tokens_apart(renderer: ChildRenderer):
    assert renderer.control_tokens == ["<s>"]
    rendered = await renderer.render(request(content="x<s>"))
    assert (rendered.text, rendered.control_spans) == ("<s>x<s>", [0, 3])
    assert rendered.has_spelled_controls


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"spin": 90_000}, "too much time"),
        ({"power": 10**9}, "too much time"),
        ({"grow": 2_000_000_000}, "too much memory"),
        ({"write": 100_000}, "longer than 4194304 bytes"),
    ],
)
async def test_limit_costs_the_request_and_not_the_child(
    renderer: ChildRenderer, message: dict, text: str
):
    pid = pid_of(renderer)
    assert text in await failure(renderer, **message)
    assert (await renderer.render(request(content="x"))).text == "<s>x"
    assert pid_of(renderer) == pid


async def test_child_that_does_not_answer_is_killed_and_replaced(renderer: ChildRenderer):
    pid, limits = pid_of(renderer), renderer._limits
    os.kill(pid, signal.SIGSTOP)
    renderer._limits = replace(limits, deadline_s=0.2)
    assert "too much time" in await failure(renderer, content="x")
    renderer._limits = limits
    assert not Path(f"/proc/{pid}").exists()
    assert (await renderer.render(request(content="x"))).text == "<s>x"


@needs.linux
async def test_child_can_open_and_write_no_files(renderer: ChildRenderer):
    limits = Path(f"/proc/{pid_of(renderer)}/limits").read_text()
    values = {line[:25].strip(): line[25:].split() for line in limits.splitlines()}
    assert values["Max file size"][:2] == ["0", "0"]
    assert int(values["Max open files"][1]) <= 16
    assert int(values["Max address space"][1]) == 512 * 1024 * 1024


@needs.linux
async def test_child_inherits_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATON_SECRET_TEXT", "x")
    renderer = ChildRenderer(setup(), SystemClock(), RenderLimits(num_children=1))
    await renderer.start()
    assert b"BATON_SECRET" not in Path(f"/proc/{pid_of(renderer)}/environ").read_bytes()
    descriptors = os.listdir(f"/proc/{pid_of(renderer)}/fd")
    assert len(descriptors) <= 5
    await renderer.close()


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "cpu"),
        ("{{ range(10 ** 9) | length }}", "unsafe"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "unsafe"),
        ("{% set n = messages|length * 10 ** 9 %}{{ ('x' * n) | length }}", "memory"),
        ("{% for a in range(90000) %}{{ 'x' * 99 }}{% endfor %}", "output"),
        ("{% include '/etc/passwd' %}", "include in line 1"),
        ("{{ messages.append(messages) }}", "unsafe"),
        ("{% for %}", "TemplateSyntaxError in line 1"),
    ],
)
async def test_bomb_is_refused_at_load(source: str, refusal: str):
    # Only what never ends must end by its time; a busy machine needs more than the product gives.
    limits = {} if refusal == "cpu" else {"probe_cpu_s": PATIENCE_S}
    renderer = ChildRenderer(setup(source, **limits), SystemClock(), RenderLimits(num_children=1))
    with pytest.raises(TemplateRefused, match=refusal):
        await renderer.start()
    assert pid_of(renderer) is None


async def test_template_that_never_compiles_is_refused_by_the_start_deadline():
    """jinja2 folds constants while it compiles."""
    limits = RenderLimits(num_children=1, start_deadline_s=2)
    renderer = ChildRenderer(setup("{{ (7 ** (10 ** 9)) % 2 }}"), SystemClock(), limits)
    with pytest.raises(TemplateRefused, match="does not load within 2 s"):
        await renderer.start()


async def test_more_waiting_conversations_than_allowed_are_overload():
    limits = RenderLimits(num_children=1, max_waiting=2, deadline_s=PATIENCE_S)
    renderer = ChildRenderer(setup(cpu_s=0.3), SystemClock(), limits)
    await renderer.start()
    results = await asyncio.gather(
        renderer.render(request(spin=90_000)),
        *(renderer.render(request(content=str(i))) for i in range(6)),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, Overloaded)]
    assert isinstance(results[0], Rendered)
    assert results[0].fault is Fault.CPU_LIMIT
    assert len(refused) == 4
    await renderer.close()


async def test_children_work_at_the_same_time():
    limits = RenderLimits(num_children=2, deadline_s=PATIENCE_S)
    renderer = ChildRenderer(setup(cpu_s=PATIENCE_S), SystemClock(), limits)
    await renderer.start()
    # Seconds of processor time; the other one takes a thousandth of that.
    slow = asyncio.ensure_future(renderer.render(request(spin=90_000)))
    await asyncio.sleep(0)
    assert (await renderer.render(request(content="x"))).text == "<s>x"
    assert not slow.done()
    slow.cancel()
    with suppress(asyncio.CancelledError):
        await slow
    await renderer.close()
