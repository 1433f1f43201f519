"""How revisions are written: for the engines that the project names, in short lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from textwrap import fill, indent, wrap
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import _repr_type as render_type
from alembic.operations.ops import CreateIndexOp, DropIndexOp, MigrateOperation
from sqlalchemy import DefaultClause, TextClause

from .._support.private import variants_of, without_variants
from ..dialects import adapters, in_words_of
from ..dialects.postgresql import STORAGE_DIALECT
from ..sql import utcdefault
from .plugin import options_in

CONCURRENTLY = "postgresql_concurrently"
"""The option of an index that is created and dropped without blocking writers."""

WIDTH = 115
"""Of lines before Alembic indents them."""
_STRING = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(: )?""")


def engines_of(context: AutogenContext) -> tuple[str, ...]:
    """Return the names of the dialects that the revision is for."""
    return tuple(sorted(options_in(context.opts).engines or {context.dialect.name}))


def op_prefix(context: AutogenContext) -> str:
    """Return the prefix of Alembic's operations, such as ``op.``."""
    return context.opts["alembic_module_prefix"] or ""


def sa_prefix(context: AutogenContext) -> str:
    """Return the prefix of SQLAlchemy's names, such as ``sa.``."""
    return context.opts["sqlalchemy_module_prefix"] or ""


# -- what differs between the engines of a revision: it is defined once, at the top -----------------------------------


class Definition(str):
    """A definition at the top of a revision, among the imports, which Alembic sorts: definitions come last."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return isinstance(other, Definition) and str(self) < str(other)

    def __gt__(self, other: str) -> bool:
        return not isinstance(other, Definition) or str(self) > str(other)


def dialect_in(context: AutogenContext, names: Collection[str]) -> str:
    """Return the condition that the revision is run on one of the engines ``names``."""
    here = f"{op_prefix(context)}get_context().dialect.name"
    return f"{here} in {tuple(names)!r}" if len(names) > 1 else f"{here} == {next(iter(names))!r}"


def only_on(context: AutogenContext, names: Collection[str], lines: Sequence[str]) -> list[str]:
    """Return ``lines`` so that they are executed on the engines ``names`` only."""
    engines = engines_of(context)
    meant = [name for name in engines if name in names]
    if len(meant) in (0, len(engines)):
        return list(lines) if meant else []
    return [f"if {dialect_in(context, meant)}:\n{indent(chr(10).join(lines), '    ')}"]


def chosen_text(context: AutogenContext, name: str, words: Mapping[str, str]) -> str:
    """Return the source of SQL that differs between engines, defined as ``name`` if the revision is for several."""
    if len({*words.values()}) == 1:
        return f"{sa_prefix(context)}text({next(iter(words.values()))!r})"
    return f"{sa_prefix(context)}text({chosen(context, name, {key: repr(text) for key, text in words.items()})})"


def chosen(context: AutogenContext, name: str, sources: Mapping[str, str]) -> str:
    """Return the source of what differs between engines, defined as ``name``."""
    entries = "".join(f"    {engine!r}: {source},\n" for engine, source in sources.items())
    context.imports.add(Definition(f"\n{name} = {{\n{entries}}}"))
    return f"{name}[{op_prefix(context)}get_context().dialect.name]"


def current_time(context: AutogenContext) -> str:
    """Return the source of the queue's default for time columns: the current time in UTC."""
    return chosen_text(context, "utc_now", {name: in_words_of(name, utcdefault()) for name in engines_of(context)})


def _chosen_type(context: AutogenContext, item: Any) -> str:
    """Return the source of a type with variants, without those of other engines."""
    variants, base = variants_of(item), without_variants(item)
    words = {name: str(render_type(variants.get(name, base), context)) for name in engines_of(context)}
    if len({*words.values()}) == 1:
        return next(iter(words.values()))
    common = str(render_type(base, context))
    others = "".join(f"\n    .with_variant({each}, {name!r})" for name, each in words.items() if each != common)
    kind, length = type(base).__name__.lower(), getattr(base, "length", None)
    name = f"{kind}_{length}_type" if length else f"{kind}_type"
    text = f"(\n    {common}{others}\n)"
    while any(each.startswith(f"\n{name} = ") and each != f"\n{name} = {text}" for each in context.imports):
        name += "_"
    context.imports.add(Definition(f"\n{name} = {text}"))
    return name


# -- rendering of Alembic's own operations on the tables of queues ----------------------------------------------------


def is_ours(default: object) -> bool:
    """Return whether ``default`` is the queue's own default for time columns."""
    return isinstance(default, DefaultClause) and isinstance(default.arg, utcdefault)


def render_item(given: Any) -> Callable[[str, Any, AutogenContext], Any]:
    """Return a ``render_item`` that chooses by engine what the project's own, if ``given``, leaves to Alembic."""

    def render(kind: str, item: Any, context: AutogenContext) -> Any:
        rendered = given(kind, item, context) if given else False
        if rendered is not False:
            return rendered
        if kind == "type" and variants_of(item):
            return _chosen_type(context, item)
        if kind == "server_default" and is_ours(item):
            return current_time(context)
        return item.source(context) if isinstance(item, SourceDefault) else False

    return render


class SourceDefault(DefaultClause):
    """A default whose source in a revision differs between engines."""

    def __init__(self, source: Callable[[AutogenContext], str]) -> None:
        super().__init__("")
        self.source = source


def render_default(context: AutogenContext, default: Any) -> str:
    """Return the source of a default that is a string, SQL, or a :class:`SourceDefault`."""
    if isinstance(default, SourceDefault):
        return default.source(context)
    if is_ours(default):
        return current_time(context)
    value = getattr(default, "arg", default)
    return f"{sa_prefix(context)}text({str(value)!r})" if isinstance(value, TextClause) else repr(value)


@contextmanager
def for_queues(context: AutogenContext, **opts: Any) -> Iterator[None]:
    """Render what differs between engines, in the block, for the engines of the revision."""
    former = context.opts
    context.opts = {**former, "render_item": render_item(former.get("render_item")), **opts}
    try:
        yield
    finally:
        context.opts = former


def of_engines(context: AutogenContext, op: MigrateOperation) -> MigrateOperation:
    """Return an operation on an index without the options of other engines, and one that drops it without any."""
    if not isinstance(op, CreateIndexOp | DropIndexOp):
        return op
    predicates = {name: each.inspection.predicate_option for name, each in adapters().items()}
    engines = engines_of(context)
    kept = {predicates[name] for name in engines} if isinstance(op, CreateIndexOp) else set()
    omitted = {*predicates.values()} - kept
    if STORAGE_DIALECT not in engines:
        omitted.add(CONCURRENTLY)
    made = copy(op)
    made.kw = {option: value for option, value in op.kw.items() if option not in omitted}
    return made


def folded(text: str, width: int = WIDTH) -> str:
    """Return ``text`` with its long lines, which are calls, broken at spaces that are not in strings."""
    protected = _STRING.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = (
        fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 8),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in protected.split("\n")
    )
    return "\n".join(lines).replace("\0", " ")


def literal(text: str) -> str:
    """Return the source of a string, as several strings if it is long."""
    return "\n        ".join(map(repr, wrap(text, 75, drop_whitespace=False, break_long_words=False)))


def looped(calls: Mapping[str, str]) -> list[str]:
    """Return calls, each by the name in it, with long lines broken: those that differ only in the name as a loop, where
    that has fewer lines."""
    alike: dict[str, list[str]] = {}
    for name, call in calls.items():
        alike.setdefault(call.replace(repr(name), "name", 1), []).append(name)
    lines: list[str] = []
    for call, names in alike.items():
        single, loop = [folded(calls[name]) for name in names], [folded(f"for name in {tuple(names)!r}:\n    {call}")]
        lines += min(single, loop, key=lambda form: "\n".join(form).count("\n"))
    return lines
