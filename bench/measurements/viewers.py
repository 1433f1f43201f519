"""Measures what an open dashboard costs a queue: `python -m bench.measurements.viewers URL...`

Tasks are claimed and completed one by one, alternately without viewers and with three viewers, who request two pages
every three seconds, as a browser does. The dashboard and the viewers run in processes of their own. Prints tasks per
second, and the processor share of the dashboard, which includes SQLite's. The tables are created, filled, and dropped.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import Engine, insert
from sqlalchemy.orm import sessionmaker

from bench.measurements.filled import at_each_url
from sqlqueue import QueueSession
from tests.dashboard.models import Email

TOKEN = "a-token-of-some-length"
VIEWERS, PAGES, PERIOD = 3, ("/", "/queue/email"), 3.0
TURN, TURNS = 6.0, 13
SUPPLY = 200_000


@contextmanager
def dashboard(url: str) -> Iterator[tuple[str, int]]:
    """Yield the address of `sqlqueue dashboard`, and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["dashboard", "tests.dashboard.models:Base", "--url", url, "--port", str(port)]
    command = [sys.executable, "-c", "from sqlqueue.cli import main; main()", *arguments]
    process = subprocess.Popen(command, env={**os.environ, "SQLQUEUE_DASHBOARD_TOKEN": TOKEN})
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            with suppress(httpx2.TransportError):
                httpx2.get(address)
                break
            time.sleep(0.2)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def view(address: str, watching: Event, ended: Event) -> None:
    """Request the pages as several viewers do, while ``watching`` is set, until the process has ``ended``."""

    def look() -> None:
        login = {"Authorization": f"Bearer {TOKEN}"}
        # no certificates to load
        with httpx2.Client(base_url=address, headers=login, timeout=60, verify=False) as client:
            tags: dict[str, str] = {}
            while not ended.is_set():
                if not watching.wait(0.1):
                    continue
                for page in PAGES:
                    headers = {"If-None-Match": tags[page]} if page in tags else {}
                    tags[page] = client.get(page, headers=headers).headers["etag"]
                until = time.monotonic() + PERIOD
                while watching.is_set() and time.monotonic() < until:
                    time.sleep(0.05)

    threads = [threading.Thread(target=look) for _ in range(VIEWERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def viewers(address: str) -> Iterator[Event]:
    """Start viewers in a process of their own, as browsers are, and yield the event that makes them watch."""
    context = multiprocessing.get_context("spawn")
    watching, ended = context.Event(), context.Event()
    process = context.Process(target=view, args=(address, watching, ended))
    process.start()
    try:
        yield watching
    finally:
        ended.set()
        process.join()


def processor_time(pid: int) -> float:
    facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def rate(sessions: Any) -> float:
    """Return the number of tasks claimed and completed per second during a turn."""
    began, done = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < TURN:
        with sessions.begin() as session:
            if (email := session.claim(Email)) is None:
                raise SystemExit("The supply of tasks is used up.")
            session.complete(email)
        done += 1
    return done / took


def compare(engine: Engine) -> str:
    sessions = sessionmaker(engine, class_=QueueSession)
    with engine.begin() as connection:
        for _ in range(SUPPLY // 10_000):
            connection.execute(insert(Email), [{"recipient": "", "secret": "", "topic": "x"}] * 10_000)
    alone, watched, spent = [], [], 0.0
    url = engine.url.render_as_string(hide_password=False)
    with dashboard(url) as (address, pid), viewers(address) as watching:
        for _ in range(TURNS):
            alone.append(rate(sessions))
            before = processor_time(pid)
            watching.set()
            watched.append(rate(sessions))
            watching.clear()
            spent += processor_time(pid) - before
    share = spent / (TURNS * TURN)
    ratios = [with_viewers / without for without, with_viewers in zip(alone, watched, strict=True)]
    noise = [later / earlier for earlier, later in pairwise(alone)]
    return (
        f"{statistics.median(alone):,.0f} tasks/s alone, {statistics.median(watched):,.0f} with viewers;"
        f" ratio within a turn {spread(ratios)}, of turns alone to the one before {spread(noise)};"
        f" the dashboard took {share:.1%} of a processor"
    )


def spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    at_each_url(__doc__, compare)
