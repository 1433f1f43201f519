"""The environment of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

from sqlalchemy import Engine

from sqlqueue.dialects import adapter_for


def machine_facts(engine: Engine) -> dict[str, Any]:
    """Return the server, driver, machine and versions of a measurement."""
    with engine.connect() as connection:
        dialect = connection.dialect
        server = ".".join(map(str, dialect.server_version_info or ()))
    return {
        "engine": f"{adapter_for(dialect).product.name} {server}",
        "driver": f"{dialect.driver} {getattr(dialect.loaded_dbapi, '__version__', '')}".strip(),
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "sqlalchemy": version("sqlalchemy"),
        "sqlqueue": version("sqlalchemy-queue"),
    }
