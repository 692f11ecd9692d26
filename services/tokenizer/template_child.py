"""The child process that renders one model's chat templates (see `baton/system/child.py`).

Once the templates are loaded it can open no more files and write none. A timer signal limits its
CPU time, the bootstrap limits its memory, and the parent kills it when all else fails.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from types import FrameType

import msgspec

from services.tokenizer.chat_template import UnusableTemplate
from services.tokenizer.render_messages import RenderRequest, TemplateReady, TemplateSetup
from services.tokenizer.template_set import CpuLimitReached, TemplateSet

_encode = msgspec.msgpack.Encoder().encode
_decode_setup = msgspec.msgpack.Decoder(TemplateSetup).decode
_decode_request = msgspec.msgpack.Decoder(RenderRequest).decode


def build_handler(setup: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
    """Load the templates. The reply is a TemplateReady, later answers are Rendered."""
    signal.signal(signal.SIGPROF, _raise_cpu_limit)
    try:
        templates = TemplateSet(_decode_setup(setup), datetime.now, _limit_cpu)
    except UnusableTemplate as error:
        return _refuse, _encode(TemplateReady(refusal=str(error)))
    _lock_down()

    def handle(request: bytes) -> bytes:
        return _encode(templates.render(_decode_request(request)))

    return handle, _encode(TemplateReady(control_tokens=templates.control_tokens))


def _refuse(_request: bytes) -> bytes:
    raise AssertionError("the templates were refused")


def _raise_cpu_limit(_number: int, _frame: FrameType | None) -> None:
    raise CpuLimitReached


@contextlib.contextmanager
def _limit_cpu(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _lock_down() -> None:
    # The first use of the time zone and of strftime reads files.
    time.localtime()
    datetime.now().strftime("%d %b %Y")
    descriptors = 1 + max(map(int, os.listdir("/dev/fd")))
    for kind, value in ((resource.RLIMIT_NOFILE, descriptors), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))
