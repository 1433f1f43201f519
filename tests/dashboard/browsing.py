"""Helpers for tests in a browser: a tab whose console must stay empty, an audit, a confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def tab(browser: Any, **options: Any) -> Iterator[Any]:
    """Yield a page; assert that its console has no errors or messages afterwards."""
    context = browser.new_context(**options)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    assert not said, said


def audit(page: Any, rules: list[str]) -> list[str]:
    """Return axe's findings, by these rules or by all."""
    chosen = {"runOnly": rules} if rules else {}
    found = page.evaluate("(chosen) => axe.run(document, chosen).then((results) => results.violations)", chosen)
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]


def fill_in(page: Any, label: str, text: str) -> None:
    """Fill in the field that has the focus when its form appears.

    If a field is filled in before that, Chromium reports that it cannot set the focus.
    """
    page.locator("[autofocus]:focus").wait_for()
    page.get_by_label(label).fill(text)


def confirm(page: Any, number: int) -> None:
    """Confirm a change of the given number of tasks, and wait for its end."""
    form = page.locator("form.confirm")
    tasks = "task" if number == 1 else "tasks"
    form.get_by_text(f"{number} {tasks} will be changed").wait_for()
    if form.get_by_label("Reason").count():
        fill_in(page, "Reason", "not wanted")
    form.locator(".primary").click()
    page.get_by_text(f"{number} of {number} tasks changed").wait_for()
