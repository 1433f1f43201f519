from __future__ import annotations

import pytest

from sqlqueue.operations import turns
from tests.worker.conftest import workers  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def beginning() -> None:
    """Forget the turns of former tests, whose engines have other rows now."""
    turns._rotations.clear()
