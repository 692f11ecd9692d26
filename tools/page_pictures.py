"""Takes the pictures of the local page for the docs, from a stack that runs: `baton up`, then
`python -m tools.page_pictures`. Needs chromium and img2webp (sudo apt-get install chromium webp).

docs/images/page.webp moves: somebody asks in the playground, kills the worker that writes the
answer, and the stream goes on. Beside it a picture of the fleet, and one of the request.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from baton.localstack.home import Home
from tests.kit.browser import Browser

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_FRAME_S = 0.16
_LAST_FRAMES = 14
_WIDTH, _HEIGHT = 1080, 640
_MAX_FRAMES = 90
_KILL_AFTER_CHARS = 100
_OVER = "document.querySelector('.answer-actions > button:nth-child(2)').hidden"
_KILL = "document.querySelector('.answer-actions .danger:not([hidden])')"
_CHARS = "document.querySelector('.answer-text').textContent.length"


def take_frames(browser: Browser, folder: Path) -> list[Path]:
    """Ask, kill, and watch: a picture every moment."""
    frames: list[Path] = []
    is_killed, left = False, _LAST_FRAMES
    browser.click(".starters button:nth-child(2)")
    browser.point(5, 5)
    while left and len(frames) < _MAX_FRAMES:
        begun_s = time.monotonic()
        frames.append(folder / f"{len(frames):03}.png")
        browser.picture(frames[-1])
        if not is_killed:
            is_killed = browser.run(
                f"{_CHARS} > {_KILL_AFTER_CHARS} && ({_KILL}?.click(), !!{_KILL})"
            )
        left -= bool(browser.run(_OVER))
        time.sleep(max(0.0, _FRAME_S - (time.monotonic() - begun_s)))
    return frames


def main() -> None:
    state = Home.of_environment().read_state()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if state is None or program is None or shutil.which("img2webp") is None:
        sys.exit("this needs a running stack, chromium and img2webp")
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with scratch as folder, Browser(program, Path(folder) / "p") as browser:
        browser.look(_WIDTH, _HEIGHT)
        browser.open(f"{state.web_url}#/playground")
        browser.until("document.querySelector('#chat-model option')")
        frames = take_frames(browser, Path(folder))
        command = ["img2webp", "-loop", "0", "-lossy", "-q", "62", "-m", "4", "-d"]
        command += [str(round(_FRAME_S * 1000)), *map(str, frames)]
        subprocess.run([*command, "-o", str(IMAGES / "page.webp")], check=True)
        browser.click(".answer-actions a")
        browser.until("document.querySelectorAll('.waterfall details').length > 10")
        browser.look(1280, 940)
        time.sleep(2)
        browser.picture(IMAGES / "page-request.png")
        browser.open(f"{state.web_url}#/playground")
        browser.click(".crowd button")
        browser.open(f"{state.web_url}#/")
        time.sleep(9)
        browser.look(1280, 1000, dark=True)
        browser.until("document.querySelector('.wires path.active')")
        browser.picture(IMAGES / "page-fleet.png")


if __name__ == "__main__":
    main()
