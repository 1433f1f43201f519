"""Deadlines for what a worker asks its database.

A connection that stays silent is shut down, which wakes whoever waits for it, and the pool opens another.  That is safe
whatever became of the transaction: it is committed or rolled back as a whole, and what is tried again is fenced.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import Token
from datetime import timedelta
from typing import Self

from sqlalchemy import Engine

from ...operations.attempts import spoken
from ..concurrency.event_loop import soon
from ..concurrency.fair_lock import FairLock
from ..reporting.health import Pulse
from ..reporting.reports import logger
from .lines import Line, Taker, cut_idle, taker

SHORTEST = timedelta(seconds=5)
"""The shortest deadline: a busy server or machine may take as long to answer."""
RARELY = timedelta(seconds=30)
"""The shortest deadline of transactions that are rare and may be slow."""
GRACE = 5.0
"""Seconds that a handler has to end once its task is lost or its time is up, and a call once its connection is cut."""
LISTENS = 10
"""Seconds for which a connection that listens says nothing itself."""
SILENCE = timedelta(seconds=10)
"""How long an answer on it may take then."""
TURN = 5.0
"""Seconds for which a call waits for its turn to write, before it waits for the writer as others do."""
TICK = 0.25
"""Seconds between two looks at the clock."""


def answer_within(lease: timedelta) -> timedelta:
    """Return how long a transaction about tasks of this lease may take.

    A heartbeat is sent after a third of the lease: if it is given up after another, it can still be repeated in time.
    """
    return max(lease / 3, SHORTEST)


def rarely_within(lease: timedelta) -> timedelta:
    """Return how long maintenance of a queue with this lease may take."""
    return max(lease, RARELY)


class NoAnswer(TimeoutError):
    """The database has not answered in time; what was asked is rolled back, unless its commit was on its way."""

    def __init__(self, within: timedelta) -> None:
        super().__init__(f"no answer for {spoken(within)}")


class Call:
    """A transaction with a deadline, as a context manager: at its deadline, its connections are shut down.

    Raises :class:`NoAnswer`, from the driver's error, if that has happened.
    """

    call_limit: timedelta | None = None

    def __init__(
        self,
        within: timedelta,
        engines: Collection[Engine],
        *,
        is_async: bool,
        leave: Callable[[], object] | None = None,
    ) -> None:
        """``engines``: those whose connections it may take.

        ``leave`` is called if its thread does not end, although its connections are shut down or it has none.
        """
        self._within = within
        self._engines = engines
        self._task = asyncio.current_task() if is_async else None
        self._leave = leave
        self._lines: dict[object, Line] = {}
        self._turn: FairLock | None = None
        self._at_leisure = self._is_silent = self._is_over = False
        self._is_limited = True
        self._token: Token[Taker | None] | None = None
        self.deadline: float | None = None

    def __enter__(self) -> Self:
        self._token = taker.set(self)
        self._expect(self._within)
        _watch.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_over = True
        self._end_turn()
        _watch.remove(self)
        if self._token is not None:
            taker.reset(self._token)
        if error is not None and self._is_silent and not isinstance(error, NoAnswer):
            raise NoAnswer(self._within) from error

    def takes(self, key: object, line: Line | None) -> None:
        """Add a connection, or lift all deadlines for one without a network.

        Raises :class:`NoAnswer` if this call has been given up.
        """
        self.check()
        if line is None:
            self._is_limited, self.deadline = False, None
        else:
            self._lines[key] = line

    def gives_back(self, key: object) -> None:
        self._lines.pop(key, None)
        self._end_turn()

    def writes(self, turn: FairLock) -> None:
        """Wait for its turn, unless it has it."""
        if self._turn is None and turn.acquire(TURN, is_async=self._task is not None):
            self._turn = turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    def check(self) -> None:
        """Raise :class:`NoAnswer` if this call has been given up: what comes late is not committed."""
        if self._is_silent:
            raise NoAnswer(self._within)

    @contextmanager
    def at_leisure(self, within: timedelta | None) -> Iterator[None]:
        """Lift the deadline for code that is not the library's, or set it to ``within`` and a grace period."""
        self._at_leisure, self.deadline = True, None
        if within is not None:
            self._expect(within + timedelta(seconds=GRACE))
        try:
            yield
        finally:
            self._at_leisure = False
            self._expect(self._within)

    def end_soon(self) -> None:
        """Set the deadline to a grace period from now.  Thread-safe."""
        self._expect(timedelta(seconds=GRACE))

    def give_up(self) -> None:
        """Shut down its connections.  Called at the deadline, and again after each further grace period."""
        self.end_soon()
        if self._at_leisure:
            self._cut()
        elif self._is_silent:
            self._interrupt()
        else:
            self._is_silent = True
            logger.warning("no answer for %s: the connection is closed, and another is opened", spoken(self._within))
            if not self._cut():
                cut_idle(tuple(self._engines))

    def _interrupt(self) -> None:
        """Cancel a coroutine; leave its connections to a thread, which cannot be woken."""
        if self._task is not None:
            soon(self._task.get_loop(), self._cancel)
            return
        while self._lines:
            self._lines.popitem()[1].abandon()
        if self._leave is not None:
            self._leave()

    def _cancel(self) -> None:
        if self._task is not None and not self._is_over:
            self._task.cancel()

    def _cut(self) -> bool:
        cut = [line.cut() for line in tuple(self._lines.values())]
        return any(cut)

    def _expect(self, within: timedelta) -> None:
        if self._is_limited:
            self.deadline = time.monotonic() + within.total_seconds()


class OwnCall(Call):
    """A transaction of the library's statements alone, which tell whether the database answers."""

    def __init__(
        self,
        within: timedelta,
        pulse: Pulse,
        engines: Collection[Engine],
        *,
        is_async: bool,
        leave: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(within, engines, is_async=is_async, leave=leave)
        self.call_limit = within + timedelta(seconds=2 * TICK)  # a driver's own limit comes after the deadline
        self._pulse = pulse

    def __enter__(self) -> Self:
        self._pulse.asked()
        return super().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._pulse.reached()
        super().__exit__(kind, error, traceback)


class _Watch:
    """A thread that looks at the clock while there are calls."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: Call) -> None:
        self._calls.add(call)
        if self._some.is_set() and self._thread is not None and self._thread.is_alive():
            return
        self._some.set()
        if self._thread is None or not self._thread.is_alive():  # as after a fork
            self._thread = threading.Thread(target=self._run, name="sqlqueue-watch", daemon=True)
            self._thread.start()

    def remove(self, call: Call) -> None:
        self._calls.discard(call)

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(TICK)
            now = time.monotonic()
            for call in tuple(self._calls):
                if call.deadline is not None and call.deadline < now:
                    self._give_up(call)
            if not self._calls:
                self._some.clear()
                if self._calls:  # added in the meantime
                    self._some.set()

    def _give_up(self, call: Call) -> None:
        try:
            call.give_up()
        except Exception:
            logger.exception("cannot close a silent connection")


_watch = _Watch()
