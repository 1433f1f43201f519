"""An asynchronous scheduler for SQL in the database: tasks that consist of an SQL statement stored in a row.

The model of such tasks, their execution with a time limit, and the program that serves several databases.
"""

from .execution import RequestFailed
from .model import SQLTaskMixin, SQLTaskModels, sql_task_models, sql_task_options
from .scheduler import SQLTaskDatabase, SQLTaskScheduler, handle_sql_tasks, read_config

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
