"""Threads, the event loop, and calls from one to the other.  Nothing here depends on tasks."""
