"""Function jobs: function calls stored as rows of a model, see :meth:`.Worker.task`.

How functions are named, and how their arguments are stored and restored; workers call them.
"""

from .functions import Functions, RegisterTask, TaskFunction

__all__ = ["Functions", "RegisterTask", "TaskFunction"]
