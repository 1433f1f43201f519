"""An asynchronous scheduler for SQL in the database: tasks that consist of an SQL statement stored in a row.

The model of such tasks, their execution with a time limit, and the program that serves several databases.
"""

from .execution import RequestFailed
from .scheduler import (
    SQLTaskDatabase,
    SQLTaskMixin,
    SQLTaskModels,
    SQLTaskScheduler,
    handle_sql_tasks,
    read_config,
    sql_task_models,
    sql_task_options,
)

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
