"""``sqlqueue demo``: worker processes index a queue of a folder's files, and one worker is killed.

Read :mod:`.application` first: it shows how an application uses the library.
"""
