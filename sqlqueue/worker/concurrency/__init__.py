"""Threads, the event loop, and calls from one to the other.  Nothing here knows what a task is."""
