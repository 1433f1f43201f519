"""A worker whose process is killed when a parcel is first handled; child processes import it from here."""

import os
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from tests.support.history import Parcel
from tests.worker.crashing import URL_VARIABLE

PROGRAM = """
import sys
from sqlqueue.cli import main
if __name__ == "__main__":
    sys.argv[1:] = ["work", "tests.worker.crashing_history:worker", *sys.argv[1:]]
    main()
"""

if URL_VARIABLE in os.environ:
    worker = Worker(
        sessionmaker(create_engine(os.environ[URL_VARIABLE]), class_=QueueSession), poll=timedelta(seconds=0.2)
    )

    @worker.handler(Parcel)
    def handle(session: QueueSession, parcel: Parcel) -> None:
        if parcel.crashes == 0:
            os._exit(7)
