"""MySQL 8.0.2 and newer, and MariaDB, which shares most of its parts.

One module for each part of an adapter; what only MariaDB does is in :mod:`.mariadb`.
"""

from .adapter import MySQL
from .mariadb import MariaDB

__all__ = ["MariaDB", "MySQL"]
