"""The command ``sqlqueue prove``: tests on the user's server that the queue keeps its promises under faults.

Its models, workers, faults and scenarios; other modules must not use them.
"""
