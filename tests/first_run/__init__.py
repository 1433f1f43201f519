"""Experiments for the first run on a SQL Server or Oracle server: `python -m tests.first_run URL`.

They answer what the documentation of these servers leaves open about locks and plans, with the library's own statements
in two or more sessions, and the server's own views. **They have never run on such a server.**
"""
