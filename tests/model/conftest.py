"""A separate declarative base for each test."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import DeclarativeBase


@pytest.fixture
def base() -> type[DeclarativeBase]:
    class Base(DeclarativeBase):
        pass

    return Base
