"""Commands for evaluating the library on a user's database: ``sqlqueue demo``, ``bench`` and ``prove``.

Each starts workers in processes of their own, on tables that it creates and drops.
"""
