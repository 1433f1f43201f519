"""An asynchronous scheduler for SQL in the database: tasks that consist of an SQL statement stored in a row.

The model of such tasks, their execution with a time limit, and the program that serves several databases.
"""

from .config import SQLTaskDatabase, read_config
from .model import SQLTaskMixin, SQLTaskModels, sql_task_models, sql_task_options
from .scheduler import SQLTaskScheduler, handle_sql_tasks
from .watchdog import RequestFailed

__all__ = [
    "RequestFailed",
    "SQLTaskDatabase",
    "SQLTaskMixin",
    "SQLTaskModels",
    "SQLTaskScheduler",
    "handle_sql_tasks",
    "read_config",
    "sql_task_models",
    "sql_task_options",
]
