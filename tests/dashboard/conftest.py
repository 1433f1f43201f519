"""A dashboard of a SQLite database, and a browser for those tests that need one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import QueueSession
from tests.dashboard.clients import OWN
from tests.dashboard.serving import dashboard, database, fill

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database of which each test changes a copy, since filling it takes longer than most tests."""
    path = tmp_path_factory.mktemp("dashboard") / "queues.db"
    engine, made = database(path)
    fill(made)
    engine.dispose()
    return path


@pytest.fixture
def sessions(tmp_path: Path, filled: Path) -> Iterator[sessionmaker[Any]]:
    path = shutil.copyfile(filled, tmp_path / "queues.db")
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


@pytest.fixture
def app(sessions: sessionmaker[Any]) -> TestClient:
    return TestClient(dashboard(sessions), headers=OWN)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium for the tests of a module; skip them where there is none, unless SQLQUEUE_REQUIRE_BROWSER=1.

    Not for the whole run: while Playwright is open, its event loop runs in this thread, so that no other can.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        reason = "there is no chromium on this machine: apt-get install chromium"
        if os.environ.get("SQLQUEUE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()
