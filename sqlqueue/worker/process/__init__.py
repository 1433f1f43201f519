"""The lifecycle of a worker: start, stop, maintenance, and the processes of a supervisor.

The other parts of a worker are created, started and ended here, and import nothing from here.
"""
