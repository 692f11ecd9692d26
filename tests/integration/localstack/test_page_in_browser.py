"""The local web page in a real browser, while requests end all the time."""

import random
import time
from collections.abc import Iterator

import pytest

from baton.localstack.home import Home
from tests import needs
from tests.integration.localstack.conftest import Traffic
from tests.kit.browser import Browser

pytestmark = needs.browser
VIEWS = ("/", "/playground", "/requests", "/requests/req-moved", "/tenants", "/workers/decode-1")
NUM_AIMS = 25
# Between looking at a row and clicking it.
HAND_S = 0.2
ROW = "[aria-label=Requests] tbody tr[data-key]"


@pytest.fixture(scope="module")
def browser(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(str(needs.BROWSER), tmp_path_factory.mktemp("profile")) as browser:
        browser.look(1280, 900)
        yield browser


def row(number: int) -> str:
    return f"{ROW}:nth-child({number}) a"


def test_what_came_from_outside_is_text_and_a_moved_request_tells_its_attempts_apart(
    page: str, browser: Browser
) -> None:
    browser.open(f"{page}/#req-moved")
    # As an older stack wrote it; and a link to a request opens it.
    browser.open(f"{page}/#/requests/req-moved")
    shown = browser.until("document.querySelector('details') && document.body.innerText")
    assert "2 attempts" in shown
    assert "off decode-1: worker_lost" in shown
    assert "decode-2, attempt 2" in shown
    assert shown.index("off decode-1") < shown.index("decode-2, attempt 2")
    browser.open(f"{page}/#/")
    browser.until("document.querySelector('[data-key=req-open]')")
    assert browser.run("document.querySelectorAll('main img').length") == 0
    assert "<img" in browser.run("document.querySelector('[data-key=req-open]').innerText")
    browser.open(f"{page}/#/requests/req-never")
    browser.until("document.body.innerText.includes('never received')")
    browser.run("history.back()")
    browser.until("document.querySelector('[data-key=req-open] a')")
    browser.click("[data-key=req-open] a")
    browser.until("document.querySelector('.tag')?.textContent === 'runs'")
    assert browser.errors == []


def test_every_aimed_click_opens_the_request_that_was_aimed_at(
    page: str, browser: Browser, home: Home
) -> None:
    draw = random.Random(7)
    aims = []
    with Traffic(home) as traffic:
        browser.open(f"{page}/#/requests")
        browser.until(f"document.querySelectorAll('{ROW}').length > 12")
        # A click is noted instead of followed: the list stays, and so does its traffic.
        browser.run(
            "window.clicked = []; document.addEventListener('click', (event) => {"
            "window.clicked.push(event.target.textContent); event.preventDefault(); }, true)"
        )
        browser.point(640, 20)
        begun = traffic.num_ended
        for _ in range(NUM_AIMS):
            aim = row(draw.randint(1, 12))
            aims.append(browser.run(f"document.querySelector('{aim}').textContent"))
            x, y = browser.centre(aim)
            # The hand is on its way, and lists are renewed meanwhile.
            for step in (0.3, 0.6, 1.0):
                browser.point(640 + (x - 640) * step, 20 + (y - 20) * step)
                time.sleep(HAND_S / 3)
            browser.press(x, y)
            browser.point(640, 20)
        assert traffic.num_ended - begun > NUM_AIMS
        assert browser.run("window.clicked") == aims
    browser.open("about:blank")


def test_focus_and_rows_stay_while_the_list_is_renewed_and_a_chip_lets_new_ones_in(
    page: str, browser: Browser, home: Home
) -> None:
    with Traffic(home):
        browser.open(f"{page}/#/requests")
        browser.until(f"document.querySelectorAll('{ROW}').length > 5")
        browser.run(
            f"window.focused = document.querySelector('{row(3)}'); window.focused.focus();"
            "window.renewed = 0; const ask = window.fetch; window.fetch = (path, ...more) => {"
            "window.renewed += String(path).startsWith('/api/requests?');"
            "return ask(path, ...more); }"
        )
        key = browser.run(f"document.querySelector('{ROW}:nth-child(3)').dataset.key")
        browser.until("window.renewed >= 3")
        assert browser.run("document.activeElement === window.focused")
        assert browser.run(f"document.querySelector('{ROW}:nth-child(3)').dataset.key") == key
        chip = "[...document.querySelectorAll('.chip')].find((each) => !each.hidden)"
        assert browser.until(f"{chip}?.textContent").endswith(" new")
        browser.run(f"{chip}.click()")
        browser.until(f"document.querySelector('{ROW}:nth-child(3)').dataset.key !== '{key}'")


@pytest.mark.parametrize("width", [1280, 400])
def test_no_view_scrolls_sideways(page: str, browser: Browser, width: int) -> None:
    browser.look(width, 900)
    wide = {}
    for view in VIEWS:
        browser.open(f"{page}/#{view}")
        link = "document.querySelector('.top nav a[aria-current]')"
        browser.until(f"{link} && document.querySelector('main').childElementCount")
        browser.until("new Promise((done) => requestAnimationFrame(() => done(true)))")
        wide[view] = browser.run("document.documentElement.scrollWidth")
    browser.look(1280, 900)
    assert {view: own for view, own in wide.items() if own > width} == {}


def test_the_names_of_columns_have_room_over_an_empty_list_on_a_phone(
    page: str, browser: Browser
) -> None:
    browser.look(400, 900)
    browser.open(f"{page}/#/requests?tenant=nobody")
    browser.until("document.querySelector('.list:last-child .empty:not([hidden])')")
    head = (
        "[...document.querySelectorAll('.list:last-child th')].filter((each) => each.offsetWidth)"
    )
    cut = browser.run(f"{head}.filter((each) => each.scrollWidth > each.clientWidth).length")
    shown = browser.run(f"{head}.reduce((sum, each) => sum + each.offsetWidth, 0)")
    browser.look(1280, 900)
    assert cut == 0
    # The shown columns have all of the width.
    assert shown > 340
