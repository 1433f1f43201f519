"""The conformance suite: tests that a package with an adapter imports and runs.

>>> from sqlqueue.testing.conformance import *
>>>
>>> @pytest.fixture
... def conformance_engine():
...     engine = create_engine("...")
...     yield engine
...     engine.dispose()

The engine must connect to an empty database, with foreign keys enforced and at least five connections; the tests create
their tables in it and drop them. They query the adapter's capabilities, never its name.
"""

from .claims import TestClaims
from .engine import TestEngine
from .keys import TestKeys
from .settling import TestSettling

__all__ = ["TestClaims", "TestEngine", "TestKeys", "TestSettling"]
