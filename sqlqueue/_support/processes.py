"""Child processes and signals."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import connection, get_all_start_methods, get_context, parent_process, resource_tracker
from pathlib import Path
from typing import Any

from .private import run_exit_functions

# -- starting and ending processes ------------------------------------------------------------------------------------
#
# Processes are never forked from the calling process, because the child would share its connections.

CONTEXT: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
_CAN_BLOCK = hasattr(signal, "pthread_sigmask")
"""Whether signals can be blocked: not on Windows."""


def start(target: Callable[..., object], *args: object, name: str | None = None, daemon: bool = False) -> Any:
    """Start and return a process that ignores Ctrl-C, which a terminal sends to all of its processes.

    Only its parent then decides when it stops.  A Ctrl-C in this process is deferred until the process has started.
    """
    process = CONTEXT.Process(target=_undisturbed, args=(target, *args), name=name, daemon=daemon)
    with _interrupts_deferred():
        process.start()
    return process


def _undisturbed(target: Callable[..., object], *args: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _CAN_BLOCK:  # otherwise the programs that it starts could not be interrupted either
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        target(*args)
    finally:
        run_exit_functions()


_IN_FORKS: dict[int, Any] = {}
"""The handlers of signals in the processes that this one forks."""


def handle_signal(number: int, handler: Callable[..., object]) -> None:
    """Handle a signal in this process, but not in processes that are forked from it, such as those of a
    ``multiprocessing.Pool``, which ends them with SIGTERM."""
    _IN_FORKS.setdefault(number, signal.signal(number, handler))


def restore_signal(number: int, handler: Any) -> None:
    """Undo :func:`handle_signal`; ``handler`` is the one from before."""
    signal.signal(number, handler)
    if _IN_FORKS.get(number) is handler:
        del _IN_FORKS[number]


def _restore_in_fork() -> None:
    for number, handler in _IN_FORKS.items():
        signal.signal(number, handler)
    _IN_FORKS.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_restore_in_fork)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Block SIGINT here and in processes that start meanwhile, such as the fork server, whose children inherit this."""
    if not _CAN_BLOCK:
        yield
        return
    resource_tracker.ensure_running()  # must start first: it unblocks the signal after starting its process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lead_group() -> None:
    """Make this process the leader of its own group.  :func:`kill_group`, or the death of its parent, ends the group.

    Signals to the parent's group no longer reach it.  SIGTERM and SIGINT have no effect on it, because service managers
    send them to every process; the programs that it starts, and the processes that it forks, react to them.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        handle_signal(number, lambda *_: None)  # not SIG_IGN, which programs inherit
    os.setpgid(0, 0)
    parent = parent_process()
    assert parent is not None
    with suppress(ImportError, OSError):  # only Linux has this
        from fcntl import F_GETFL, F_SETFL, F_SETOWN, F_SETSIG, fcntl  # noqa: PLC0415

        # the kernel kills the group, because C code that holds the GIL would block the thread below
        fcntl(parent.sentinel, F_SETOWN, -os.getpgrp())
        fcntl(parent.sentinel, F_SETSIG, signal.SIGKILL)
        fcntl(parent.sentinel, F_SETFL, fcntl(parent.sentinel, F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def kill_group(process: Any) -> None:
    """Kill a process that has called :func:`lead_group`, or is about to, and all processes that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def exit_text(status: int | None) -> str:
    """Return a description of how a process ended, from its exit status or the negative number of a signal."""
    if status is None:
        return "ended"
    number = -status if status < 0 else status - 128
    if number <= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was killed by {name}" + (", possibly because memory ran out" if number == signal.SIGKILL else "")


MIB = 1024 * 1024


def resident_memory() -> int:
    """Return the resident memory of this process in bytes; where there is no ``/proc``, its peak so far."""
    import resource  # noqa: PLC0415 (Windows has none)

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * resource.getpagesize()


CLEANUP_LIMIT = 3.0
"""The time limit for the cleanup of a process that ends, in seconds."""


def end_soon() -> None:
    """End this process with status 0 after at most :data:`CLEANUP_LIMIT` seconds.

    Python waits for all threads that are not daemons, and handlers may have started some.
    """
    timer = threading.Timer(CLEANUP_LIMIT, os._exit, [0])
    timer.daemon = True
    timer.start()


YOUNG_OBJECTS = 10_000
"""The number of new objects between garbage collections: enough that most objects of a job are freed before the
next."""


def settle_in() -> None:
    """Exclude all objects loaded so far from garbage collection, since they live as long as the process."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # collection is enabled
        gc.set_threshold(max(young, YOUNG_OBJECTS), *older)


# -- whether a process has ended, known for the processes of this machine and container -------------------------------

_STARTED = 19
"""The place of the start time after the state in ``/proc/[pid]/stat``."""


def birth_of(process: int) -> str | None:
    """Return a text that tells this process from all others, past and future ones; ``None`` if there is no such
    process, or where the system does not tell.

    It names the boot of the machine, the namespaces in which the number is that of the process, and its start.
    Another namespace can have the same name only once all processes of the former one have ended.
    """
    place, status = _place(), _status(process)
    return None if place is None or status is None else f"{place} {status[_STARTED]}"


def has_ended(process: int, birth: str | None) -> bool:
    """Return whether the process with this :func:`birth_of` is known to have ended.

    False for processes of other machines and containers, about which nothing is known here.
    """
    place = _place()
    if place is None or birth is None or not birth.startswith(f"{place} "):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to another user
        run_exit_functions()
    status = _status(process)
    return status is not None and (status[0] == "Z" or birth != f"{place} {status[_STARTED]}")


def _status(process: int) -> Sequence[str] | None:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@cache
def _place() -> str | None:
    """Return a text that identifies this boot of this machine and the namespaces of this process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time")]
    except OSError:
        return None
    return hashlib.sha256(" ".join([socket.gethostname(), boot, *spaces]).encode()).hexdigest()[:32]
