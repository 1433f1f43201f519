"""MySQL 8.0.1 and newer, and MariaDB, which has most of its parts in common with it."""

from .adapter import MySQL
from .mariadb import MariaDB

__all__ = ["MariaDB", "MySQL"]
