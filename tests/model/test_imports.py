"""What ``import sqlqueue`` leaves out until it is used, so that processes that only enqueue do not carry a worker."""

import subprocess
import sys

LEFT_OUT = {"alembic", "http", "prometheus_client", "rich", "sqlqueue.asyncio", "sqlqueue.cli", "sqlqueue.worker"}


def test_import_of_the_package() -> None:
    program = "import sys, sqlqueue; print(*sys.modules); from sqlqueue import *; print(Worker, AsyncQueueSession)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported, used = ended.stdout.splitlines()
    assert LEFT_OUT.isdisjoint(imported.split())
    assert used == "<class 'sqlqueue.worker.worker.Worker'> <class 'sqlqueue.asyncio.AsyncQueueSession'>"
