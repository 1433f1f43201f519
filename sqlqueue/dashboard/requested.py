"""An action as requested by a URL or a form."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from .._support.exc import ArgumentError
from ..operations.filtering import of_keys
from ..operations.mass_changes import CANCEL, RERUN, RETRY, RUN_NOW, MassChange, discarding, in_states
from ..queue.spec import Criterion, QueueSpec
from .access import ON_QUEUES, ON_TASKS, Action
from .filters import Filter, Query
from .site import site_of, viewer_of

MAX_KEYS = 500
"""The maximum number of tasks selected one by one: pages show fewer, and SQLite could not compare many more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedAction:
    """An action on a queue."""

    action: Action
    spec: QueueSpec
    filter: Filter
    keys: Sequence[str]
    """The keys of the tasks; if empty, all tasks that the filter matches."""
    texts: Query
    """The other fields of the form."""

    def text(self, name: str) -> str:
        """Return a field of the form."""
        return self.texts.get(name, "").strip()

    @property
    def criteria(self) -> list[Criterion]:
        """The criteria of the tasks."""
        if not self.keys:
            state = self.filter.state
            in_state = [] if state is None else [in_states(self.spec, [state], hung=False)]
            return [*self.filter.criteria(self.spec), *in_state]
        return [of_keys(self.spec, self.keys)]

    @property
    def change(self) -> MassChange:
        """The change that an action makes to tasks."""
        changes = {Action.RETRY: RETRY, Action.RERUN: RERUN, Action.RUN_NOW: RUN_NOW, Action.CANCEL: CANCEL}
        return changes.get(self.action) or discarding(self.text("reason") or "discarded in the dashboard")


def permitted(request: Request, actions: Container[Action]) -> Action:
    """Return the action in the path, one of ``actions``; 404 if it is not one of them, 403 if the viewer may not
    perform it."""
    action = next((each for each in Action if each == request.path_params["action"]), None)
    if action is None or action not in actions:
        raise HTTPException(404, "There is no such action.")
    if action not in viewer_of(request).may:
        raise HTTPException(403, f"You are not allowed to do this: {action}.")
    return action


def requested_action(request: Request, fields: Query) -> RequestedAction:
    """Return the requested action.

    Errors as for :func:`permitted`, and 400 if the request selects neither tasks nor all of them.
    """
    action = permitted(request, ON_QUEUES)
    site = site_of(request)
    spec = site.queue(request)
    by_filter = fields.get("scope") == "filter"
    keys = [] if by_filter else [key for name, key in fields.multi_items() if name == "key" and key]
    if action in ON_TASKS and not by_filter and not keys:
        raise HTTPException(400, "Select tasks first.")
    if len(keys) > MAX_KEYS:
        raise HTTPException(400, f"Select at most {MAX_KEYS} tasks, or all that match a filter.")
    chosen = Filter.of(fields, site.exposure.filters_of(spec)) if by_filter else Filter()
    return RequestedAction(action=action, spec=spec, filter=chosen, keys=keys, texts=fields)


def checked(what: RequestedAction) -> list[Criterion]:
    """Return the criteria of the tasks; 400 if they are invalid."""
    try:
        return what.criteria
    except ArgumentError as error:
        raise HTTPException(400, str(error)) from error
