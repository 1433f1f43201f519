"""The interface between fetchers and the other parts of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod


class BaseFetcher(ABC):
    """Claims the tasks of one handler, and has the handler called.  All methods must be called on the event loop of the
    run."""

    slots: int
    """How many calls run at a time."""

    @abstractmethod
    async def run(self) -> None:
        """Claim until :meth:`drain`, through outages of the database."""

    @abstractmethod
    def drain(self) -> None:
        """Claim nothing more; running tasks continue."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no task is held and no claim is under way."""

    @property
    def is_still(self) -> bool:
        """Whether nothing that it has started is running, apart from suspects."""
        return self.is_idle

    @abstractmethod
    def hold(self) -> None:
        """Start no further tasks until :meth:`resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Start tasks again after :meth:`hold`."""

    @abstractmethod
    def resize(self, slots: int) -> None:
        """Run ``slots`` calls at a time from now on.  Running calls continue."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Stop running tasks as far as possible."""

    @abstractmethod
    def close(self) -> None:
        """Give up the remaining tasks, and end the threads."""
