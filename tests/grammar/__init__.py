"""The statements for engines without a server, checked by parsers of their languages and by binders of their names."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any


class ParserMissingError(RuntimeError):
    """An error for a parser or binder that is not installed; the message contains the fix."""


def ask(command: Sequence[str], question: Any, **settings: str) -> Any:
    """Return the answer of another process to `question`, both as JSON; `settings` are for its environment."""
    given = json.dumps(question)
    environment = os.environ | settings
    done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return json.loads(done.stdout)
