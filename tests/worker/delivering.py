"""The worker of a process that crashes when it first handles a parcel."""

from __future__ import annotations

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from tests.support.history import Parcel
from tests.worker.crashing import POLL, URL_VARIABLE

worker = Worker(sessionmaker(create_engine(os.environ[URL_VARIABLE]), class_=QueueSession), poll=POLL)


@worker.handler(Parcel)
def deliver(session: QueueSession, parcel: Parcel) -> None:
    if parcel.crashes == 0:
        os._exit(7)
