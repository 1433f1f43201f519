"""The queue operations, as functions that take a session.  Session methods, the worker and the CLI call these."""

from ..kinds.limits import Limit
from ..model.companions import WorkerState
from .batches import TaskBatch, TaskGroup, batch, seal
from .bulk import BATCH, Batch, Pruned, Reactivated, is_prunable, prune, rescue
from .claiming import claim, claim_many, claiming, consume, consume_many
from .control import Pause, limits, pause, paused, resume, set_limit, set_rate
from .enqueueing import OnConflict, enqueue
from .error_groups import LAST, ErrorGroup, errors, in_error_group
from .flows import (
    BatchInfo,
    BatchProgress,
    batches,
    cancel_batch,
    member_of,
    no_batch_text,
    predecessors,
    progress,
    refuse_unknown_batch,
    unfinished_batches,
)
from .graphs import AWAITED, Around, FlowEdge, FlowNode, Graph, around, graph
from .history import (
    Bucket,
    Durations,
    PastAttempt,
    count_old_attempts,
    history,
    indexed_timeline,
    prune_history,
    timeline,
)
from .keys import KeyBlock, KeyState, keys
from .latches import advance, prune_batches
from .paging import find
from .placing import Awaited, Event, When, event, open_event
from .reactivating import rerun, retry, run_now
from .recording import attempt_text, brief, reported, spoken
from .schedules import DeclaredSchedules, RecurringTask, declare_schedules, recurring_tasks, reschedule, unschedule
from .settling import Tasks, cancel, complete, discard, fail, heartbeat, release, snooze
from .statistics import CAP, QueueOverview, QueueStats, abandoned, overview, stats, stats_by
from .upkeep import promote
from .waiting import wait_for
from .why import Explanation, why
from .workers import (
    Command,
    HandlerInfo,
    Released,
    WorkerInfo,
    check_registered,
    drain_workers,
    release_workers,
    set_concurrency,
    stop_workers,
    unserved,
    workers,
)
