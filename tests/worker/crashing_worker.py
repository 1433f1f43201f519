"""A worker that a task kills, at a place from which child processes import it."""

from tests.worker.crashing import load

worker = load()
