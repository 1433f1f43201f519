"""Threads and the event loop of a worker, and word from the ones to the other.  Nothing here knows what a task is."""
