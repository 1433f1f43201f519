"""The worker processes, which are killed, frozen and cut off from the server."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection

from sqlalchemy import URL, update

from sqlqueue import QueueSession, Worker

from ..database import sessions
from .database import connected
from .models import ACCOUNTS, Account, Receipt, Task

WORK = "work"
"""The topic of the tasks that worker processes handle."""
CONCURRENCY = 4
_PAUSE = 0.005
_CARELESS = 0.1
_DESCRIPTORS = 1_024


def main(channel: Connection, url: URL, name: str) -> None:
    """Run a worker until the other end of ``channel`` sends ``stop`` or is closed."""
    logging.disable()  # the faults are intentional, and drivers warn of them too
    engine = connected(url)
    engine.connect().close()
    worker = Worker(sessions(engine), name=name, poll=timedelta(seconds=0.3), grace=timedelta(seconds=5))

    @worker.handler(Task, Task.topic == WORK, concurrency=CONCURRENCY)
    def handle(session: QueueSession, task: Task) -> None:
        accounts = random.sample(range(1, ACCOUNTS + 1), 2)
        if random.random() > _CARELESS:  # in different orders, two transactions can deadlock
            accounts.sort()
        for number in accounts:
            session.execute(update(Account).where(Account.id == number).values(balance=Account.balance + 1))
            time.sleep(_PAUSE)
        session.add(Receipt(task_id=task.id, worker=name))

    channel.send("ready")
    threading.Thread(target=_obey, args=(channel, worker), daemon=True).start()
    worker.run()
    channel.send(dict(worker._reports.counts))


def _obey(channel: Connection, worker: Worker) -> None:
    with suppress(EOFError):
        while channel.recv() == "cut":
            cut_connections()
    worker.stop()


def cut_connections() -> int:
    """Shut down this process's connections to servers, whatever the driver, and return how many there were."""
    number = 0
    for descriptor in range(3, _DESCRIPTORS):
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getpeername():  # socket pairs, such as pipes between processes, have no name
                connection.shutdown(socket.SHUT_RDWR)
                number += 1
    return number
