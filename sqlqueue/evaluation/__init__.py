"""Commands for evaluating the library on a user's database: ``sqlqueue demo``, ``bench`` and ``prove``.

Each command starts workers in separate processes, on tables that it creates and drops.
"""
