"""Checks that the reference contains every public name, under its public path, with a docstring."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

MODULES = (
    "sqlqueue",
    "sqlqueue.alembic",
    "sqlqueue.dashboard",
    "sqlqueue.functions",
    "sqlqueue.outbox",
    "sqlqueue.sqltasks",
    "sqlqueue.testing",
    "sqlqueue.worker",
)
logger = logging.getLogger(__name__)


@cache
def public_names() -> dict[str, str]:
    """Return the path of each public object where it is defined, and the path by which users import it."""
    found: dict[str, str] = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            definition = getattr(module, name)
            path = f"{getattr(definition, '__module__', module.__name__)}.{getattr(definition, '__qualname__', name)}"
            found.setdefault(path, f"{module.__name__}.{name}")
    return found


def described_by_class(attribute: str) -> bool:
    """Tell whether the docstring of its class names this attribute."""
    owner, _, name = attribute.rpartition(".")
    module, _, class_ = owner.rpartition(".")
    return f"``{name}``" in (getattr(import_module(module), class_).__doc__ or "")


def require_docstring(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    if not any(lines) and not (what == "attribute" and described_by_class(name)):
        logger.warning("%s %s has no docstring", what, name)


def require_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    for missing in sorted(set(public_names().values()) - set(env.domains.python_domain.objects)):
        logger.warning("%s is public and not in the reference", missing)


def resolve_public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element) -> Element | None:
    """Resolve a reference to the module that defines an object, as in signatures, to the object's public path."""
    public = public_names().get(node.get("reftarget", ""))
    if public is None or node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", require_docstring)
    app.connect("env-check-consistency", require_public_names)
    app.connect("missing-reference", resolve_public_name)
    return {"parallel_read_safe": True}
