"""``sqlqueue demo``: worker processes index a queue of a folder's files, and one worker is killed.

Read :mod:`.models` and :mod:`.worker` first: they show how an application uses the library.
"""
