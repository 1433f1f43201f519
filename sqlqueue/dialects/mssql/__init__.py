"""SQL Server 2016 and newer.  This project has never run it on a real server: see the README."""

from .adapter import SQLServer

__all__ = ["SQLServer"]
