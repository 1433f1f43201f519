"""The command ``sqlqueue prove``: shows on a server of the user's that the queue keeps its promises under faults."""
