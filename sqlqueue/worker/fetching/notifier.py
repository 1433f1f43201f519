"""Listens for notifications of other processes, on engines that have them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sqlalchemy import Engine

from ...dialects import adapter_for
from ...dialects.parts.notifications import Listener
from ...transaction.notifications import spread
from ..database.backoff import growing_pauses
from ..database.base import Database
from ..reporting.reports import Reports, logger


class Notifier(threading.Thread):
    """A thread whose connection listens.  While the connection is lost, workers still poll."""

    def __init__(
        self, engine: Engine, listener: Listener, names: Iterable[str], database: Database, reports: Reports
    ) -> None:
        super().__init__(name="sqlqueue-notifier", daemon=True)
        self._engine = engine
        self._listener = listener
        self._names = set(names)
        self._database = database
        self._reports = reports
        self._backoff = growing_pauses()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop listening; does not wait for the thread."""
        self._stopped.set()

    def run(self) -> None:
        """Listen until :meth:`stop`, and reconnect after errors."""
        own = self._database.own()
        try:
            while not self._stopped.is_set():
                try:
                    own.listen(self._engine, self._listener, self._begun, self._heard)
                except Exception as error:
                    pause = next(self._backoff)
                    self._reports.database_error("listen for notifications", error, pause)
                    self._stopped.wait(pause.total_seconds())
        finally:
            own.close()

    def _begun(self) -> None:
        self._backoff = growing_pauses()
        spread(self._names)  # notifications sent earlier were missed

    def _heard(self, names: set[str]) -> bool:
        spread(names & self._names)
        return not self._stopped.is_set()


def notifiers(engines: Iterable[tuple[Engine, str]], database: Database, reports: Reports) -> list[Notifier]:
    """Return a notifier for each engine that has notifications, for the queues on it.

    Logs which drivers cannot listen although their engines have notifications.
    """
    names: dict[Engine, set[str]] = {}
    for engine, name in engines:
        names.setdefault(engine, set()).add(name)
    found = list[Notifier]()
    for engine, some in names.items():
        notifications, driver = adapter_for(engine.dialect).notifications, engine.dialect.driver
        listener = notifications.listener(driver)
        if listener is not None:
            found.append(Notifier(engine, listener, some, database, reports))
        elif notifications.listeners:
            able = ", ".join(sorted(notifications.listeners))
            text = "the driver %s cannot listen for notifications, so new tasks wait for the next poll; these can: %s"
            logger.warning(text, driver, able)
    return found
