"""One module for each page: it reads what the page shows, and renders it.

Changes are in :mod:`.actions` and :mod:`.commands`; a page changes nothing.
"""
