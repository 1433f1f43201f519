"""What an open dashboard costs a queue: `python -m tests.measurements.viewers URL...`

Tasks are claimed and completed one by one, in turns with nobody looking and with viewers of a dashboard in another
process, who ask for two pages every three seconds, as a browser does.  Printed are tasks per second, and the share of a
processor that the dashboard takes, which contains SQLite's own.  The tables are made, filled, and dropped again.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession
from tests.dashboard.models import Base, Email
from tests.measurements.dashboard import fill

VIEWERS, PAGES, PERIOD = 3, ("/", "/queue/email"), 3.0
TURN, TURNS = 12.0, 5
SUPPLY = 200_000


@contextmanager
def dashboard(url: str) -> Iterator[tuple[str, int]]:
    """Yield the address of `sqlqueue dashboard`, and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["dashboard", "tests.dashboard.models:Base", "--url", url, "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-c", "from sqlqueue.cli import main; main()", *arguments])
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


@contextmanager
def looked_at(address: str) -> Iterator[None]:
    """Viewers ask for the pages within."""
    over = threading.Event()

    def look() -> None:
        with httpx2.Client(base_url=address, timeout=60) as client:
            tags: dict[str, str] = {}
            while True:
                for page in PAGES:
                    headers = {"If-None-Match": tags[page]} if page in tags else {}
                    tags[page] = client.get(page, headers=headers).headers["etag"]
                if over.wait(PERIOD):
                    return

    threads = [threading.Thread(target=look) for _ in range(VIEWERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def processor_time(pid: int) -> float:
    facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def rate(sessions: Any) -> float:
    """Return how many tasks are claimed and completed in a second, over a turn."""
    began, done = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < TURN:
        with sessions.begin() as session:
            if (email := session.claim(Email)) is None:
                raise SystemExit("The supply of tasks is used up.")
            session.complete(email)
        done += 1
    return done / took


def compare(engine: Any, url: str) -> str:
    sessions = sessionmaker(engine, class_=QueueSession)
    with engine.begin() as connection:
        for _ in range(SUPPLY // 10_000):
            connection.execute(insert(Email.__table__), [{"recipient": "", "secret": "", "topic": "x"}] * 10_000)
    alone, watched, spent = [], [], 0.0
    with dashboard(url) as (address, pid):
        for _ in range(TURNS):
            alone.append(rate(sessions))
            before = processor_time(pid)
            with looked_at(address):
                watched.append(rate(sessions))
            spent += processor_time(pid) - before
    share = spent / (TURNS * TURN)
    ratio = statistics.median(watched) / statistics.median(alone)
    rates = (
        f"{statistics.median(alone):,.0f} tasks/s alone, {statistics.median(watched):,.0f} with viewers ({ratio:.3f})"
    )
    return f"{rates}; the dashboard took {share:.1%} of a processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("urls", nargs="+")
    given = parser.parse_args()
    for url in given.urls:
        engine = create_engine(url)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        try:
            fill(engine, given.tasks)
            print(f"{engine.dialect.name}, {given.tasks:,} tasks: {compare(engine, url)}", flush=True)
        finally:
            Base.metadata.drop_all(engine)
            engine.dispose()


if __name__ == "__main__":
    main()
