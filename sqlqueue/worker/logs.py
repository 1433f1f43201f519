"""The task that a handler runs, in the log lines that the application writes meanwhile; formats of log lines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from .._support.texts import ALL_FRAMES, readable
from ..operations.recording import task_facts
from ..transaction import running

# -- the task of the calling handler ----------------------------------------------------------------------------------


def log_fields() -> dict[str, Any]:
    """Return what log lines say of the task that the calling handler runs; nothing outside of a handler.

    ``queue`` is the name of its table, ``key`` its primary key as text, ``function`` the function of a function job
    (otherwise ``None``), ``attempt`` the number of the attempt, as in its row, and ``worker`` the name of the worker.
    Sends nothing to the database.
    """
    job = running.get(None)
    return {} if job is None else task_facts(job.claim, job.function)


class TaskLogFilter(logging.Filter):
    """Adds the task to each record that is logged while a handler runs, wherever in the application.

    The attributes of the record are those of :func:`log_fields`, and ``task``, a text such as ``email 7: attempt 1 (2
    left)``, which is empty outside of a handler.  An attribute that the record already has is left as it is.

    Add it to the handlers of logging, not to loggers, whose filters do not see the records of their children.  It works
    in threads and coroutines, in child processes of ``isolation="process"``, and with ``mode="lock"``.  A thread that a
    handler starts itself has to be given the context: ``contextvars.copy_context().run(...)``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes; return true."""
        job, known = running.get(None), vars(record)
        told = "" if job is None or "key" in known else str(job)  # the library's own messages name their task
        known.update({name: value for name, value in {"task": told, **log_fields()}.items() if name not in known})
        return True


# -- the formats of `sqlqueue work --log-format` ----------------------------------------------------------------------


class LogFormat(StrEnum):
    """How ``sqlqueue work`` writes log lines."""

    TEXT = "text"
    JSON = "json"


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "task", ALL_FRAMES}
"""Attributes of a record that :class:`JSONLogFormatter` writes under other names, or not at all."""
_LINE, _PLACE = "%(asctime)s %(levelname)s %(process)d %(name)s", "%(message)s"


class TextLogFormatter(logging.Formatter):
    """Formats records as text, those of handlers with their task: ``... [email 7: attempt 1 (2 left)] sent``."""

    def __init__(self) -> None:
        super().__init__(f"{_LINE} {_PLACE}")
        self._of_task = logging.PercentStyle(f"{_LINE} [%(task)s] {_PLACE}")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        return self._of_task.format(record) if getattr(record, "task", "") else super().formatMessage(record)


class JSONLogFormatter(logging.Formatter):
    """Formats each record as one line of JSON, in ASCII.

    The keys are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``process``, ``message``, if there are any
    ``exception`` and ``stack``, and all attributes that were given as ``extra`` or added by filters such as
    :class:`TaskLogFilter`, unless they are ``None``.  An attribute named like one of the other keys gets an underscore
    at its end.  Durations are seconds; what JSON cannot express is text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            told["exception"] = record.exc_text
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in _STANDARD and value is not None:
                told[f"{name}_" if name in told else name] = _plain(value)
        return json.dumps(told)


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return readable(value)
    return value


# -- logging of a process whose application configures none -----------------------------------------------------------


class _NotElsewhere(logging.Filter):
    """Rejects records that a handler of the application takes, so that no line appears twice."""

    def filter(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not logging.root:
            if any(self._takes(each, record) for each in logger.handlers):
                return False
            logger = logger.parent
        return True

    @staticmethod
    def _takes(handler: logging.Handler, record: logging.LogRecord) -> bool:
        return handler.level <= record.levelno and not isinstance(handler, logging.NullHandler)


def handle_rest(handler: logging.Handler) -> bool:
    """Pass the records that the application does not handle itself to ``handler``, with their task.

    Does nothing, and returns false, if the application has configured the root logger.
    """
    if logging.root.handlers:
        return False
    handler.addFilter(_NotElsewhere())
    handler.addFilter(TaskLogFilter())
    logging.root.addHandler(handler)
    return True


def log_to_stderr(form: LogFormat, level: str | None) -> bool:
    """Log everything from ``level`` on, INFO by default, to standard error, unless the application has configured the
    root logger: returns false then, and only sets the level if one is given.

    Applications configure it in the module of their worker, which therefore has to be imported before.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLogFormatter() if form is LogFormat.JSON else TextLogFormatter())
    is_added = handle_rest(handler)
    if is_added or level is not None:
        logging.root.setLevel((level or "info").upper())
    return is_added
