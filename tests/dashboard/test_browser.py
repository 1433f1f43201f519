"""The dashboard in Chromium: every page, every action, attacks, and a worker whose progress a page follows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from sqlqueue import Worker
from tests.dashboard.models import Base, Crawl, Digest, Email
from tests.dashboard.scenes import HOSTILE, dashboard, register, served

PAGES = {
    "overview": "/",
    "queue": "/queue/email",
    "discarded": "/queue/email?status=discarded",
    "task": "/queue/email/task?key=62",
    "hostile": "/queue/email/task?key=151",
    "pipeline": "/queue/orders",
    "errors": "/errors",
    "schedules": "/schedules",
    "limits": "/limits",
    "workers": "/workers",
    "outbox": "/outbox",
    "pipelines": "/pipelines",
    "confirm": "/queue/email/confirm/discard?key=150",
    "command": "/workers/confirm/set-concurrency?scope=all",
}
SERIOUS = ("serious", "critical")


@contextmanager
def tab(browser: Any, **options: Any) -> Iterator[Any]:
    """Yield a page; afterwards, neither an error nor a message may be in its console."""
    context = browser.new_context(**options)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    assert said == []


def open_all(page: Any, url: str, look: Callable[[str], None]) -> None:
    for name, path in PAGES.items():
        page.goto(url + path)
        page.locator("#updated:not(:empty)").wait_for()
        assert "hacked" not in page.title()
        look(name)


def audit(page: Any) -> list[str]:
    """Return what axe finds that is serious."""
    import axe_playwright_python

    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    page.evaluate(f"{script}; 0")
    found = page.evaluate("axe.run().then((results) => results.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in SERIOUS]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_every_page(browser: Any, sessions: sessionmaker[Any], scheme: str, width: int) -> None:
    """Nothing serious for axe, nothing wider than the screen, nothing in the console, no attack successful."""
    with sessions.begin() as session:
        session.pause(Email, "news", reason="the mail server is down", paused_by="grace")
    register(sessions, "web-1:211", HOSTILE)
    folder = os.environ.get("SQLQUEUE_SCREENSHOTS")

    def look(name: str) -> None:
        assert audit(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        if folder:
            page.screenshot(path=Path(folder) / f"{name}-{scheme}-{width}.png")

    viewport = {"width": width, "height": 800}
    with served(dashboard(sessions, columns={Email: ["recipient", "secret"]})) as url:  # noqa: SIM117
        with tab(browser, color_scheme=scheme, viewport=viewport) as page:
            open_all(page, url, look)


@pytest.mark.parametrize("scripts", [True, False])
def test_actions(browser: Any, sessions: sessionmaker[Any], scripts: bool) -> None:
    """With the script, confirmations are dialogs; without, pages."""
    register(sessions, "web-1:211", "web-2:212")
    with served(dashboard(sessions)) as url, tab(browser, java_script_enabled=scripts) as page:
        page.goto(f"{url}/queue/email/task?key=62")
        page.get_by_role("link", name="Retry").click()
        page.get_by_role("button", name="Retry").click()
        page.get_by_text("1 of 1 tasks changed").wait_for()

        page.goto(f"{url}/queue/email?status=available")
        page.locator("#tasks [name=key]").first.check()
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.locator("form.confirm .primary").click()
        page.get_by_text("Done:").wait_for()

        page.goto(f"{url}/queue/email?status=retryable")
        page.get_by_text("All that match").click()
        page.get_by_role("link", name="Run now all").click()
        page.locator("form.confirm").get_by_text("4 tasks will be changed").wait_for()
        page.locator("form.confirm .primary").click()
        page.get_by_text("4 of 4 tasks changed").wait_for()

        page.goto(f"{url}/queue/email")
        page.get_by_role("link", name="Pause").click()
        page.get_by_label("Reason").fill("the server is down")
        page.locator("form.confirm .primary").click()
        page.get_by_text("has been paused by ada").wait_for()
        page.get_by_role("link", name="Resume").click()
        page.locator("form.confirm .primary").click()
        page.get_by_text("has been paused by ada").wait_for(state="detached")

        page.goto(f"{url}/limits")
        page.get_by_role("row", name="a.org").get_by_role("link", name="Set limit").click()
        page.get_by_label("How many").fill("9")
        page.locator("form.confirm .primary").click()
        page.get_by_role("cell", name="9", exact=True).wait_for()

        page.goto(f"{url}/schedules")
        page.get_by_role("link", name="Reschedule").first.click()
        page.get_by_role("textbox", name="Schedule").fill("PT5M")
        page.locator("form.confirm .primary").click()
        page.get_by_role("cell", name="PT5M").wait_for()

        page.goto(f"{url}/workers")
        page.get_by_role("link", name="Set concurrency: all").click()
        page.get_by_label("Calls of each handler").fill("2")
        page.locator("form.confirm .primary").click()
        page.get_by_text("told 2 a handler").first.wait_for()
        page.get_by_role("link", name="Drain: web-1:211").click()
        page.locator("form.confirm .primary").click()
        page.get_by_role("row", name="web-1:211").get_by_text("live drain").wait_for()
    with sessions() as session:
        assert {each.limit for each in session.limits(Crawl) if each.key == "a.org"} == {9}
        assert {task.schedule for task in session.find(Digest, Digest.id == 1)} == {"PT5M"}
        assert not [task for task in session.find(Email) if task.status == "retryable"]
        assert [(each.command, each.concurrency) for each in session.workers(Base)] == [("drain", 2), (None, 2)]


def test_another_site_cannot_act(browser: Any, sessions: sessionmaker[Any]) -> None:
    """A page of another origin sends a form to the dashboard, and shows it in a frame: neither has an effect."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def attack(request: Any) -> HTMLResponse:
        target = request.query_params["target"]
        form = f"<form method=post action='{target}/queue/email/pause'><button>Win</button></form>"
        return HTMLResponse(f"<!doctype html><link rel=icon href=data:,>{form}<iframe src='{target}/'></iframe>")

    context = browser.new_context()
    page = context.new_page()
    with served(dashboard(sessions)) as url, served(Starlette(routes=[Route("/", attack)])) as evil:
        page.goto(f"{evil.replace('127.0.0.1', 'localhost')}/?target={url}")
        assert page.frames[1].evaluate("document.body.textContent.includes('Email')") is False
        with page.expect_navigation() as navigation:
            page.get_by_role("button", name="Win").click()
        assert navigation.value.status == 403
    context.close()
    with sessions() as session:
        assert session.paused(Email) == []


def test_a_page_follows_a_running_worker(browser: Any, sessions: sessionmaker[Any]) -> None:
    """Figures change without a reload, while a selection, the focus and the scroll position stay."""
    from playwright.sync_api import expect

    worker = Worker(sessions)
    go = threading.Event()

    @worker.handler(Email, concurrency=2)
    def send(email: Email) -> None:
        go.wait(60)

    with served(dashboard(sessions)) as url, tab(browser, viewport={"width": 900, "height": 500}) as page:
        page.goto(f"{url}/queue/email")
        box = page.locator("#tasks [name=key]").nth(30)
        box.check()
        box.focus()
        chosen, scrolled = box.input_value(), page.evaluate("scrollY")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        go.set()
        tile = page.locator(".tiles li", has_text="available").locator("b")
        expect(tile).not_to_have_text("78", timeout=60_000)
        assert page.evaluate("document.activeElement.value") == chosen
        assert page.evaluate("scrollY") == scrolled
        worker.stop()
        thread.join(60)
