"""``python -m bench``: measures the costs of a queue and the latency of workers on the user's database.

One module for each section of its report, and the processes, clients and baselines that they share.
"""
