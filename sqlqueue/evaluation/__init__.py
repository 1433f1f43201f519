"""Commands for evaluating the library on a user's database: ``sqlqueue demo`` and ``sqlqueue prove``.

Each command starts workers in separate processes, on tables that it creates and drops.
"""
