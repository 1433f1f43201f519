"""The methods of the sessions: both classes have every operation, with its docstring."""

from __future__ import annotations

import inspect

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import AsyncQueueSession, QueueSession

OPERATIONS = {
    name: function
    for name, function in vars(sqlqueue).items()
    if name in sqlqueue.__all__ and inspect.isfunction(function) and "session" in inspect.signature(function).parameters
}


def test_operations_are_found() -> None:
    assert {"claim", "complete", "enqueue", "stats", "pause", "claiming"} <= set(OPERATIONS)


@pytest.mark.parametrize("base", [(QueueSession, Session), (AsyncQueueSession, AsyncSession)], ids=["sync", "asyncio"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_a_method(name: str, base: tuple[type, type]) -> None:
    session, plain = base
    assert not hasattr(plain, name), f"this would hide {plain.__name__}.{name}"
    assert getattr(session, name).__doc__ == OPERATIONS[name].__doc__ is not None
