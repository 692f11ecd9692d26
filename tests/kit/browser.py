"""A headless Chromium over its debugging pipe: what a person at a page does and sees.

Commands and events are JSON between two pipes (Chrome DevTools Protocol), so that no other package
is needed. One page at a time.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

TIMEOUT_S = 60.0
_POLL_S = 0.02


def _place(to_read: int, to_write: int) -> None:
    """Put the pipes where the browser looks for them."""
    os.dup2(to_read, 3)
    os.dup2(to_write, 4)


class PageError(Exception):
    """A script of the page, or a command, failed."""


class Browser:
    """One Chromium with one page. Use it as a context."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_read, to_write)]
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
            "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=partial(_place, *ends),
        )
        for fd in (to_read, to_write, *ends):
            os.close(fd)
        self._rest = b""
        self._number = 0
        self._session = ""
        # Of the page: errors of scripts and what was written to its console as one.
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, PageError, TimeoutError):
            self._session = ""
            self.call("Browser.close")
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **params: Any) -> Any:
        """Send a command; returns its result. Raises PageError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return answer["result"]
        raise AssertionError("messages end with an answer")

    def _messages(self) -> Iterator[Any]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            while b"\0" not in self._rest:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not select.select([self._read], [], [], left_s)[0]:
                    raise TimeoutError("the browser does not answer")
                piece = os.read(self._read, 2**16)
                if not piece:
                    raise PageError("the browser has ended")
                self._rest += piece
            message, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(message)
            self._note(answer)
            yield answer

    def _note(self, event: Any) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        """Load an address, or go to another part of the same page."""
        self.call("Page.navigate", url=url)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size and a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise. Raises PageError."""
        ran = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
        )  # fmt: skip
        if "exceptionDetails" in ran:
            raise PageError(ran["exceptionDetails"].get("exception", {}).get("description", ""))
        return ran["result"].get("value")

    def until(self, script: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Wait until an expression is true; returns its value, or true for an element."""
        deadline_s = time.monotonic() + timeout_s
        asked = f"Promise.resolve({script}).then((v) => v instanceof Node || v)"
        while not (value := self.run(asked)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not true in time: {script}")
            time.sleep(_POLL_S)
        return value

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of the first such element, in the window."""
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def point(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, x: float, y: float) -> None:
        """Click there."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        """Point at the first such element and click it."""
        self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block:'center'}})"
        )
        x, y = self.centre(selector)
        self.point(x, y)
        self.press(x, y)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def key(self, name: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text,
            )  # fmt: skip

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
