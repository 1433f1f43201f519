"""The same on a real server: each transaction runs in a thread, and the server is queried for waiting transactions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Semaphore, Thread, current_thread
from typing import Any

from sqlalchemy import NullPool, Select, create_engine, event
from sqlalchemy.exc import OperationalError

from sqlqueue.dialects import adapter_for
from tests.locking.interleaving import DEADLOCK, Actor, Interleaving, Script
from tests.support.engines import PASSWORD
from tests.support.harness import Database

_PATIENCE = 30.0


class ServerInterleaving(Interleaving):
    """An interleaving on a real server: the turn may pass to another transaction at each statement and each commit. The
    engine's case has the query for waiting transactions."""

    def __init__(self, db: Database, scripts: Sequence[Script]) -> None:
        super().__init__(scripts)
        self._case = db.case
        self._engine = db.variant(poolclass=NullPool).session_engine
        with self._engine.connect() as connection:  # which queries the server's version once
            server = adapter_for(connection.dialect).inspection
            server.verify(connection)
            server.check_locks(connection)
        event.listen(self._engine, "before_execute", self._gate)
        event.listen(self._engine, "commit", self._gate)
        account = db.url.set(username=db.case.administrator, password=PASSWORD)
        self._onlooker = create_engine(account, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()
        self._waiting: set[str] = set()
        self._ended: set[str] = set()
        self._backends: dict[str, Any] = {}
        self._may_go = {actor.name: Semaphore(0) for actor in self.actors}
        self._pauses = {actor.name: Semaphore(0) for actor in self.actors}
        self._threads = {actor.name: Thread(target=self._play, args=(actor,), name=actor.name) for actor in self.actors}
        for thread in self._threads.values():
            thread.start()

    def close(self) -> None:
        """Resume all transactions without turns."""
        for actor in self.actors:
            self._may_go[actor.name].release(1_000)
        for thread in self._threads.values():
            thread.join()
        self._onlooker.close()

    def is_alive(self, actor: Actor) -> bool:
        return actor.name not in self._ended

    def is_stuck(self, actor: Actor) -> bool:
        return actor.name in self._waiting

    def go(self, actor: Actor) -> None:
        self._may_go[actor.name].release()
        self._watch(actor)
        for each in self.actors:  # waiting transactions may continue now
            if each is not actor and each.name in self._waiting:
                self._watch(each)

    def _watch(self, actor: Actor) -> None:
        """Wait until the transaction pauses, ends or waits for a lock."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self._pauses[actor.name].acquire(timeout=0.15):
                self._waiting.discard(actor.name)
                return
            if self._waits(actor):
                if actor.name not in self._waiting:
                    self.tell(f"{actor.name}'s {actor.step}: waits")
                self._waiting.add(actor.name)
                return
        raise AssertionError(f"{actor.name}'s {actor.step} neither ends nor waits for a lock")

    def _waits(self, actor: Actor) -> bool:
        if actor.name not in self._backends:
            return False
        asked = self._case.waits_sql.format(connection=self._backends[actor.name])
        return bool(self._onlooker.exec_driver_sql(asked).scalar())

    def _play(self, actor: Actor) -> None:
        self._may_go[actor.name].acquire()
        try:
            actor.play(self._engine, self)
        except OperationalError:
            self.tell(DEADLOCK)
        finally:
            self._ended.add(actor.name)  # a thread stays alive for a moment
            self._pauses[actor.name].release()

    def _gate(self, connection: Any, *statement: Any) -> None:
        if statement and isinstance(statement[0], Select) and "pg_notify" in str(statement[0]):
            return  # not a separate step, since it may be sent with the BEGIN
        name = current_thread().name
        with connection.connection.cursor() as cursor:
            cursor.execute(f"SELECT {self._case.connection_id}()")
            self._backends[name] = cursor.fetchone()[0]
        self._pauses[name].release()
        self._may_go[name].acquire()
