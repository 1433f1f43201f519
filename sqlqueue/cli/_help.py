"""The text of ``--help``: wrapped once, at spaces only, and with examples that can be copied."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from shutil import get_terminal_size
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

Definition = tuple[str, str]
"""An argument, an option or a command, and its description."""
WIDEST = 100
"""The maximum width: longer lines are hard to read."""
_LONGEST_TERM = 28
_TYPE = re.compile(r" <[^>]*>$")
_BRACES = re.compile(r"^\{(.*)\}(?=(\.\.\.)?$)")
_WORD = re.compile(r"'[^']*'|\S+")


class Command(TyperCommand):
    """A command whose docstring is its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the whole help."""
        formatter.write("\n".join(_page(self, ctx, _sections(self, ctx))))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage; some versions of typer set braces around required arguments."""
        return [_BRACES.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """The program, whose commands are listed under the heading of their ``rich_help_panel``."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the whole help."""
        sections = _sections(self, ctx)
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            said, *_ = _paragraphs(command.help or "")
            sections.setdefault(command.rich_help_panel or "Commands", []).append((name, said))
        formatter.write("\n".join(_page(self, ctx, sections)))


def definitions(command: Any, ctx: Any, kind: str) -> list[Definition]:
    """Return the arguments or options of ``command``; ``kind`` is one of these words, without the plural's "s"."""
    chosen = [each for each in command.get_params(ctx) if each.param_type_name == kind]
    records = [each.get_help_record(ctx) for each in chosen]
    # some versions of typer escape brackets for rich
    return [(_TYPE.sub("", term), text.replace("\\[", "[")) for term, text in filter(None, records)]


def _sections(command: Any, ctx: Any) -> dict[str, list[Definition]]:
    return {"Arguments": definitions(command, ctx, "argument"), "Options": definitions(command, ctx, "option")}


def _page(command: Any, ctx: Any, sections: dict[str, list[Definition]]) -> Iterator[str]:
    width = min(get_terminal_size().columns, WIDEST)
    usage = " ".join(["Usage:", ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield from _wrapped(usage, width, "", "       ")
    for paragraph in _paragraphs(command.help or ""):
        yield ""
        if paragraph.startswith(" "):
            yield from (line for each in paragraph.split("\n") for line in _example(each, width))
        else:
            yield from _wrapped(paragraph, width, "  ", "  ")
    for heading, entries in sections.items():
        if entries:
            yield from ("", typer.style(f"{heading}:", bold=True))
            yield from _listed(entries, width)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring, those of prose on one line."""
    for paragraph in text.split("\n\n"):
        yield paragraph if paragraph.startswith(" ") else " ".join(paragraph.split())


def _example(line: str, width: int) -> Iterator[str]:
    """Yield a line of code; a command that is too long continues on the next line, as in a shell."""
    code = line.strip()
    room = width - 2  # for the backslash
    parts = [line]
    if code.startswith("sqlqueue ") and len(line) > width:
        parts = [""]
        for word in _WORD.findall(code):
            if len(f"{parts[-1]} {word}") > room and parts[-1]:
                parts.append(f"        {word}")
            else:
                parts[-1] = f"{parts[-1]} {word}" if parts[-1] else f"    {word}"
    yield from (f"{part} \\" for part in parts[:-1])
    yield parts[-1]


def _listed(entries: Sequence[Definition], width: int) -> Iterator[str]:
    """Yield terms and descriptions in two columns; a term that is too long stands on its own line."""
    longest = min(_LONGEST_TERM, width // 2 - 4)
    column = max((len(term) for term, _ in entries if len(term) <= longest), default=longest)
    for term, text in entries:
        indent = " " * (column + 4)
        lines = list(_wrapped(text, width, indent, indent)) or [""]
        shown = typer.style(term, fg=typer.colors.CYAN)
        if len(term) > column:
            yield f"  {shown}"
        else:
            lines[0] = f"  {shown}{lines[0][len(term) + 2 :]}"
        yield from lines


def _wrapped(text: str, width: int, first: str, others: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
