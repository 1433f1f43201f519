"""Oracle Database 12.2 and newer.  This project has never run it on a real server: see the README."""

from .adapter import Oracle

__all__ = ["Oracle"]
