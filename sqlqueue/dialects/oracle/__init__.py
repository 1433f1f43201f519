"""Oracle Database 12.2 and newer.  Never run on a real server by this project: see the README."""

from .adapter import Oracle

__all__ = ["Oracle"]
