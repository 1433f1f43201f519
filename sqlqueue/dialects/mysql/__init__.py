"""MySQL 8.0.1 and newer, and MariaDB, which shares most of its parts."""

from .adapter import MySQL
from .mariadb import MariaDB

__all__ = ["MariaDB", "MySQL"]
