"""The dashboard: an ASGI application that shows queues to operators and executes their actions.

Needs the extra ``dashboard``.  Mount :class:`Dashboard` in an application, or run ``sqlqueue dashboard``.
"""

from .access import Action, Viewer, only_this_machine
from .app import Dashboard

__all__ = ["Action", "Dashboard", "Viewer", "only_this_machine"]
