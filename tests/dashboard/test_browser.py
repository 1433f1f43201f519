"""The dashboard in Chromium: every page, every action, attacks, and a worker whose progress a page follows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.orm import sessionmaker

from sqlqueue import Status, utcnow
from tests.dashboard.browsing import audit, confirm, fill_in, tab
from tests.dashboard.models import Base, Crawl, Digest, Email
from tests.dashboard.serving import HOSTILE, dashboard, fill_batch, register, served
from tests.dashboard.test_mounted import flask

PAGES = {
    "overview": "/",
    "queue": "/queue/email",
    "discarded": "/queue/email?status=discarded",
    "task": "/queue/email/task?key=62",
    "hostile": "/queue/email/task?key=151",
    "pipeline": "/queue/orders",
    "keys": "/queue/crawl",
    "search": "/search?search=user",
    "errors": "/errors",
    "schedules": "/schedules",
    "limits": "/limits",
    "workers": "/workers",
    "outbox": "/outbox",
    "pipelines": "/pipelines",
    "batches": "/batches",
    "batch": "/batch?key=import+7",
    "step": "/queue/step/task?key=44",
    "edit": "/queue/email/edit?key=150&column=recipient",
    "confirm": "/queue/email/confirm/discard?key=150",
    "command": "/workers/confirm/set-concurrency?scope=all",
}
STILL = ("search", "edit", "confirm", "command")
"""Pages that have nothing to refresh."""
LOOKS: list[tuple[str, int, list[str]]] = [
    ("light", 1280, []),
    ("dark", 1280, ["color-contrast", "link-in-text-block"]),
    ("light", 390, ["scrollable-region-focusable", "target-size"]),
]
"""Colour schemes, widths, and the axe rules whose results depend on them; none: all rules."""
CUT = """[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.getAttribute('aria-label'))"""
"""The tables of a page that are wider than the place for them."""
INDENTS = """[...new Set([...document.querySelectorAll('td[data-label]')]
    .map((each) => getComputedStyle(each).paddingLeft))]"""
"""Where the values of a page's tables begin on a phone, one below another."""
ON_TASKS = {"Run now": "scheduled", "Discard": "available"}
"""Two actions on tasks, of which one asks for a reason, and a state that each changes."""


def open_all(page: Any, url: str, look: Callable[[str], None]) -> None:
    for name, path in PAGES.items():
        page.goto(url + path)
        assert page.locator("#updated").inner_text() == ("" if name in STILL else "Refreshes automatically.")
        assert "hacked" not in page.title()
        look(name)


def test_every_page(browser: Any, sessions: sessionmaker[Any]) -> None:
    """There are no axe findings, nothing wider than the screen, cut or indented unevenly, nothing in the console, and
    no successful attack. A page is loaded once, and checked in light and dark colours and at phone width.
    """
    with sessions.begin() as session:
        session.pause(Email, "news", reason="the mail server is down", paused_by="grace")
    register(sessions, "web-1:211", HOSTILE)
    fill_batch(sessions)
    folder = os.environ.get("SQLQUEUE_SCREENSHOTS")
    import axe_playwright_python

    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()

    def look(name: str) -> None:
        page.evaluate(f"{axe}; 0")
        for scheme, width, rules in LOOKS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            assert audit(page, rules) == [], (name, scheme, width)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (name, width)
            assert page.evaluate(CUT) == [], (name, width)
            assert width > 390 or len(page.evaluate(INDENTS)) <= 1, name
            if folder:
                page.screenshot(path=Path(folder) / f"{name}-{scheme}-{width}.png")

    with (
        served(dashboard(sessions, columns={Email: ["recipient", "secret"]}, editable={Email: ["recipient"]})) as url,
        tab(browser) as page,
    ):
        open_all(page, url, look)


def test_actions_on_tasks_without_the_script(browser: Any, sessions: sessionmaker[Any]) -> None:
    with served(dashboard(sessions)) as url, tab(browser, java_script_enabled=False) as page:
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
        page.get_by_text("All matching tasks").click()
        page.get_by_role("link", name="Run now all").click()
        page.locator("form.confirm").get_by_text("4 tasks will be changed").wait_for()
        page.locator("form.confirm .primary").click()
        page.get_by_text("4 of 4 tasks changed").wait_for()
    with sessions() as session:
        assert not [task for task in session.find(Email) if task.status == "retryable"]


def test_colours_follow_the_system_or_the_choice_of_the_viewer(browser: Any, sessions: sessionmaker[Any]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with served(dashboard(sessions)) as url, tab(browser, color_scheme="light") as page:
        page.goto(f"{url}/limits")
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(ground)
        assert light != dark
        for choice, expected in (("Light", light), ("Dark", dark), ("Automatic", dark)):
            page.get_by_role("button", name=choice).click()
            page.locator("[aria-pressed=true]", has_text=choice).wait_for()
            assert page.evaluate(ground) == expected


@pytest.mark.parametrize("scripts", [True, False])
def test_actions_on_queues_and_workers(browser: Any, sessions: sessionmaker[Any], scripts: bool) -> None:
    """With the script, confirmations are dialogs; without, pages."""
    with served(dashboard(sessions)) as url, tab(browser, java_script_enabled=scripts) as page:
        page.goto(f"{url}/queue/email")
        page.get_by_role("link", name="Pause").click()
        fill_in(page, "Reason", "the server is down")
        page.locator("form.confirm .primary").click()
        page.get_by_text("was paused by ada").wait_for()
        page.get_by_role("link", name="Resume").click()
        page.locator("form.confirm .primary").click()
        page.get_by_text("was paused by ada").wait_for(state="detached")

        page.goto(f"{url}/limits")
        page.get_by_role("row", name="a.org").get_by_role("link", name="Set limit").click()
        page.get_by_label("Maximum running").fill("9")
        page.locator("form.confirm .primary").click()
        page.get_by_role("cell", name="9", exact=True).wait_for()

        page.goto(f"{url}/schedules")
        page.get_by_role("link", name="Reschedule").first.click()
        page.get_by_role("textbox", name="Schedule").fill("PT5M")
        page.locator("form.confirm .primary").click()
        page.get_by_role("cell", name="PT5M").wait_for()

        register(sessions, "web-1:211", "web-2:212")  # registered here, because they are live for half a minute
        page.goto(f"{url}/workers")
        page.get_by_role("link", name="Set concurrency of all").click()
        fill_in(page, "Concurrent calls", "2")
        page.locator("form.confirm .primary").click()
        page.get_by_text("set to 2 per handler").first.wait_for()
        page.get_by_role("link", name="Drain web-1:211").click()
        page.locator("form.confirm .primary").click()
        page.get_by_role("row", name="web-1:211").get_by_text("live drain").wait_for()
    with sessions() as session:
        assert {each.limit for each in session.limits(Crawl) if each.key == "a.org"} == {9}
        assert {task.schedule for task in session.find(Digest, Digest.id == 1)} == {"PT5M"}
        assert [(each.command, each.concurrency) for each in session.workers(Base)] == [("drain", 2), (None, 2)]


@pytest.mark.parametrize("action", ON_TASKS)
def test_each_action_on_one_task_on_a_selection_and_on_all_that_match(
    browser: Any, sessions: sessionmaker[Any], action: str
) -> None:
    state = ON_TASKS[action]
    with sessions.begin() as session:
        session.execute(delete(Email))
        later = utcnow(timedelta(hours=1)) if state == "scheduled" else utcnow()
        values = {"status": state, "available_at": later, "recipient": "", "secret": "", "topic": "news"}
        session.execute(insert(Email.__table__), [{"id": number} for number in range(1, 7)])
        session.execute(update(Email.__table__).values(values))
    with served(dashboard(sessions)) as url, tab(browser) as page:
        page.goto(f"{url}/queue/email/task?key=1")
        page.get_by_role("link", name=action, exact=True).click()
        confirm(page, 1)
        page.goto(f"{url}/queue/email?status={state}")
        page.get_by_label("Select 2", exact=True).check()
        page.get_by_label("Select 3", exact=True).check()
        page.get_by_role("button", name=action, exact=True).click()
        confirm(page, 2)
        page.get_by_text("All matching tasks").click()
        page.get_by_role("link", name=f"{action} all").click()
        confirm(page, 3)
    with sessions() as session:
        counts = session.stats(Email).counts
    became = "discarded" if action == "Discard" else "available"
    assert counts == {**dict.fromkeys(Status, 0), became: 6}


def test_a_change_of_many_tasks_shows_its_progress_and_can_be_stopped(
    browser: Any, sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.operations.reactivating.BATCH", 1)
    monkeypatch.setattr("sqlqueue.dashboard.site.SOON", 0)
    with (
        served(dashboard(sessions)) as url,
        tab(browser) as page,
        closing(sqlite3.connect(sessions.kw["bind"].url.database, isolation_level=None)) as writer,
    ):
        for ending in ("Done:", "Stopped:"):
            writer.execute("BEGIN IMMEDIATE")  # blocks the change
            page.goto(f"{url}/queue/email/confirm/cancel?scope=filter&topic=billing&status=available")
            number = int(page.locator("form.confirm b").first.inner_text())
            page.locator("form.confirm .primary").click()
            page.get_by_text("In progress:").wait_for()
            assert page.locator("progress").get_attribute("max") == str(number)
            if ending == "Stopped:":
                page.get_by_role("button", name="Stop").click()
                page.get_by_text("In progress:").wait_for()
            writer.execute("ROLLBACK")
            page.get_by_text(ending).wait_for(timeout=60_000)
            with sessions() as session:
                left = session.stats(Email, Email.topic == "billing")["available"]
            assert left == (0 if ending == "Done:" else number - 1)
            with sessions.begin() as session:
                session.execute(update(Email).where(Email.status == "cancelled").values(status="available"))


def test_under_a_path_in_another_framework(browser: Any, sessions: sessionmaker[Any]) -> None:
    """The dialogs are the same in all; Flask is a WSGI application."""
    with served(flask(dashboard(sessions))) as url, tab(browser) as page:
        page.goto(f"{url}/ops/queues/")
        page.get_by_role("link", name="email").first.click()
        page.get_by_role("link", name="Pause").click()
        fill_in(page, "Reason", "mounted")
        page.locator("form.confirm .primary").click()
        page.get_by_text(": mounted.").wait_for()
    with sessions.begin() as session:
        assert session.resume(Email)


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
        assert page.frames[1].evaluate("document.body.textContent.includes('email')") is False
        with page.expect_navigation() as navigation:
            page.get_by_role("button", name="Win").click()
        assert navigation.value.status == 403
    context.close()
    with sessions() as session:
        assert session.paused(Email) == []
