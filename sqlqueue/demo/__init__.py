"""``sqlqueue demo``: a folder's files are a queue, worker processes index them, and one worker is killed.

Read :mod:`.models` and :mod:`.worker` first: they are how an application uses the library.
"""
