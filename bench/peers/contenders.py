"""The libraries that are compared, and what is measured for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["enqueue", "drain", "pickup"]
_SCRIPTS = Path(__file__).parent / "scripts"
_ALL: frozenset[Part] = frozenset(("enqueue", "drain", "pickup"))


class PeerError(Exception):
    """The reason why a library cannot be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerContender:
    """A library, and a form of handler."""

    name: str
    script: Path
    form: str = ""
    requirements: tuple[str, ...] = ()
    """The packages installed into its environment; empty if it runs in the current one."""
    in_threads: bool = False
    """Whether its handlers run in threads, whose number is an option; otherwise as many run at a time as a batch has
    jobs."""
    parts: frozenset[Part] = _ALL

    @property
    def schema(self) -> str:
        """The name of its schema."""
        return f"sqlqueue_bench_{self.script.stem}_{self.form}".rstrip("_")


def _own(name: str, script: str, form: str, *parts: Part, in_threads: bool = False) -> PeerContender:
    return PeerContender(
        name=name, script=_SCRIPTS / script, form=form, in_threads=in_threads, parts=frozenset(parts) or _ALL
    )


def _library(name: str, *requirements: str) -> PeerContender:
    return PeerContender(name=name, script=_SCRIPTS / f"with_{name}.py", requirements=(name, *requirements))


BASELINE = "psycopg by hand"
CONTENDERS = (
    _own(BASELINE, "by_hand.py", "psycopg"),
    _own("SQLAlchemy ORM by hand", "by_hand.py", "orm", "enqueue", "drain"),
    _own("sqlqueue, handler(job)", "with_sqlqueue.py", "without", in_threads=True),
    _own("sqlqueue, handler(session, job)", "with_sqlqueue.py", "within", "drain", "pickup", in_threads=True),
    _own("sqlqueue, coroutine handler(job)", "with_sqlqueue.py", "coroutine", "drain", "pickup"),
    _own("sqlqueue, function job", "with_sqlqueue.py", "task", in_threads=True),
    _library("pgqueuer", "asyncpg"),
    _library("oban"),
    _library("chancy"),
    _library("procrastinate", "psycopg[binary]"),
    PeerContender(name="graphile-worker", script=_SCRIPTS / "with_graphile.cjs", requirements=("graphile-worker",)),
)
