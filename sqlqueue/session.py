"""The session of an application that has queues: ``sessionmaker(engine, class_=QueueSession)``."""

from __future__ import annotations

from sqlalchemy.orm import Session

from . import operations


class QueueSession(Session):
    """A :class:`sqlalchemy.orm.Session` with the operations of :mod:`sqlqueue` as methods.

    Each method is the function of the same name, called with this session.
    """

    claim = operations.claim
    claim_many = operations.claim_many
    claiming = operations.claiming
    consume = operations.consume
    consume_many = operations.consume_many

    complete = operations.complete
    fail = operations.fail
    discard = operations.discard
    cancel = operations.cancel
    release = operations.release
    snooze = operations.snooze
    heartbeat = operations.heartbeat

    enqueue = operations.enqueue
    batch = operations.batch
    seal = operations.seal
    advance = operations.advance
    event = operations.event
    open_event = operations.open_event
    predecessors = operations.predecessors
    progress = operations.progress
    graph = operations.graph
    batches = operations.batches
    cancel_batch = operations.cancel_batch
    declare_schedules = operations.declare_schedules
    reschedule = operations.reschedule
    unschedule = operations.unschedule

    retry = operations.retry
    rerun = operations.rerun
    run_now = operations.run_now
    promote = operations.promote
    rescue = operations.rescue
    prune = operations.prune
    set_limit = operations.set_limit
    set_rate = operations.set_rate
    limits = operations.limits
    keys = operations.keys
    pause = operations.pause
    resume = operations.resume
    paused = operations.paused
    workers = operations.workers
    unserved = operations.unserved
    drain_workers = operations.drain_workers
    release_workers = operations.release_workers
    stop_workers = operations.stop_workers
    set_concurrency = operations.set_concurrency

    find = operations.find
    stats = operations.stats
    stats_by = operations.stats_by
    overview = operations.overview
    timeline = operations.timeline
    errors = operations.errors
    why = operations.why
    history = operations.history
    prune_history = operations.prune_history
    prune_batches = operations.prune_batches
