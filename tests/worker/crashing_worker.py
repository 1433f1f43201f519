"""A worker that a task kills, in a module that child processes can import."""

from tests.worker.crashing import load

worker = load()
