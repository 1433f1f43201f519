from __future__ import annotations

from tests.worker.conftest import workers  # noqa: F401  (a fixture)
