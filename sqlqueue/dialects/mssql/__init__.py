"""SQL Server 2016 and newer.  Never run on a real server by this project: see the README."""

from .adapter import SQLServer

__all__ = ["SQLServer"]
