"""Function jobs: function calls stored as rows of a model, see :meth:`.Worker.task`."""

from .registry import Functions
from .task import RegisterTask, TaskFunction

__all__ = ["Functions", "RegisterTask", "TaskFunction"]
