"""The lifecycle of a worker: start, stop, maintenance, and the processes of a supervisor."""
