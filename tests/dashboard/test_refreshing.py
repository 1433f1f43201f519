"""How pages in Chromium refresh: what changes, how often they ask, and when they do not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sqlqueue import Worker
from tests.dashboard.browsing import tab
from tests.dashboard.models import Email
from tests.dashboard.serving import ada, dashboard, served

TURN = "(hidden) => { document.isHidden = hidden; document.dispatchEvent(new Event('visibilitychange')); }"
HIDDEN = "Object.defineProperty(document, 'hidden', { get: () => document.isHidden === true })"
LONG = 600_000
"""In milliseconds.  The browser's clock is advanced instead of waiting."""


def asked(page: Any) -> list[Any]:
    """Return the requests of the page's script from now on, as they are sent."""
    found: list[Any] = []
    page.on("request", lambda request: found.append(request) if is_refresh(request) else None)
    return found


def is_refresh(request: Any) -> bool:
    return bool(request.resource_type == "fetch")


def is_answer(response: Any) -> bool:
    return is_refresh(response.request)


def stop_clock(page: Any) -> None:
    """From now on, only the test moves the browser's clock."""
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)


def pass_long(page: Any) -> None:
    page.clock.run_for(LONG)
    page.title()  # by now, the browser has reported requests


def test_a_hidden_page_sends_no_requests(browser: Any, sessions: sessionmaker[Any]) -> None:
    """Without requests, nothing is read from the database."""
    with served(dashboard(sessions)) as url, tab(browser) as page:
        page.clock.install()
        page.add_init_script(HIDDEN)
        page.goto(url)
        with page.expect_request_finished(is_refresh):
            page.clock.run_for(4_000)  # visible: it refreshes
        requests = asked(page)
        page.evaluate(TURN, True)
        pass_long(page)
        assert requests == []
        stop_clock(page)
        with page.expect_response(is_answer):  # one without a body is not always reported as finished
            page.evaluate(TURN, False)
            page.clock.run_for(100)  # at once, not after a period


def test_a_page_opened_in_the_background_sends_no_requests(browser: Any, sessions: sessionmaker[Any]) -> None:
    with served(dashboard(sessions)) as url, tab(browser) as page:
        page.clock.install()
        page.add_init_script(f"{HIDDEN}; document.isHidden = true")
        page.goto(url)
        requests = asked(page)
        pass_long(page)
        assert requests == []


@pytest.mark.parametrize("path", ["/queue/email/confirm/pause", "/workers/confirm/stop-workers?scope=all"])
def test_a_confirmation_does_not_refresh(browser: Any, sessions: sessionmaker[Any], path: str) -> None:
    with served(dashboard(sessions)) as url, tab(browser) as page:
        page.clock.install()
        page.goto(url + path)
        requests = asked(page)
        pass_long(page)
        page.evaluate(TURN, False)
        pass_long(page)
        assert requests == []
        assert page.locator("#updated").inner_text() == ""


def test_a_page_is_sent_again_only_when_it_has_changed(browser: Any, sessions: sessionmaker[Any]) -> None:
    with served(dashboard(sessions)) as url, tab(browser) as page:
        page.clock.install()
        page.goto(f"{url}/schedules")

        def answer() -> Any:
            with page.expect_response(is_answer) as found:
                page.clock.run_for(4_000)
            return found.value

        first, second = answer(), answer()
        assert "if-none-match" not in first.request.headers
        assert (first.status, second.status) == (200, 304)
        assert second.request.headers["if-none-match"] == first.headers["etag"]
        assert page.locator("#updated").inner_text() == "Refreshes automatically."


def test_a_page_says_that_it_is_out_of_date_and_asks_less_often(browser: Any, sessions: sessionmaker[Any]) -> None:
    context = browser.new_context()  # its console has the failures
    page = context.new_page()
    page.clock.install()
    with served(dashboard(sessions)) as url:
        page.goto(f"{url}/schedules")
    requests = asked(page)
    for _ in range(3):
        with page.expect_event("requestfailed", is_refresh):
            page.clock.run_for(60_000)
        page.get_by_text("Out of date").wait_for()
    stop_clock(page)
    requests.clear()
    page.clock.run_for(5_000)
    page.title()
    assert requests == []  # after each failure it waits longer: by now, more than ten seconds
    with page.expect_event("requestfailed", is_refresh):
        page.clock.run_for(60_000)
    context.close()


def test_a_page_says_that_its_viewer_must_log_in_again(browser: Any, sessions: sessionmaker[Any]) -> None:
    """Whether the application refuses the request or redirects it to a form; with a link that asks for the page."""
    answers: list[Response | None] = [None]

    def permit(request: Request) -> Any:
        if request.headers.get("accept") == "*/*" and answers[0] is not None:
            return answers[0]
        return ada(request)

    context = browser.new_context()  # its console has the failures
    page = context.new_page()
    page.clock.install()
    with served(dashboard(sessions, authorize=permit)) as url:
        page.goto(f"{url}/queue/email?status=discarded")
        for answer in (Response(status_code=401), RedirectResponse("/login", 303)):
            answers[0] = answer
            page.clock.run_for(60_000)
            page.get_by_role("link", name="Out of date: log in again.").click()
            page.wait_for_url(f"{url}/queue/email?status=discarded")
            page.get_by_text("Refreshes automatically.").wait_for()
    context.close()


def test_a_page_follows_a_running_worker(browser: Any, sessions: sessionmaker[Any]) -> None:
    """Figures change without a reload, while the selection, the focus and the scroll position stay."""
    from playwright.sync_api import expect

    worker = Worker(sessions)
    go, place = threading.Event(), "document.activeElement.getBoundingClientRect().top"

    @worker.handler(Email, concurrency=2)
    def send(email: Email) -> None:
        go.wait(60)

    with served(dashboard(sessions)) as url, tab(browser, viewport={"width": 900, "height": 500}) as page:
        page.goto(f"{url}/queue/email")
        box = page.locator("#tasks [name=key]").nth(30)
        box.check()
        box.focus()
        chosen, seen_at = box.input_value(), page.evaluate(place)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        go.set()
        tile = page.locator(".tiles li", has_text="available").locator("b")
        expect(tile).not_to_have_text("78", timeout=60_000)
        assert page.evaluate("document.activeElement.value") == chosen
        assert page.evaluate(place) == pytest.approx(seen_at, abs=1)  # browsers scroll if lines above wrap differently
        worker.stop()
        thread.join(60)
