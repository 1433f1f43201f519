"""The directive `sqlqueue-commands`, which lists every command with the text of its `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from sqlqueue.cli import application
from sqlqueue.cli._help import definitions


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(described()), allow_section_headings=True)


def described() -> Iterator[str]:
    """Yield lines of Markdown: each command under a heading."""
    group = get_command(application())
    assert isinstance(group, typer.core.TyperGroup)
    with typer.Context(group, info_name="sqlqueue") as parent:
        for name in group.list_commands(parent):
            command = group.commands[name]
            with typer.Context(command, info_name=name, parent=parent) as context:
                usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
                entries = [each for kind in ("argument", "option") for each in definitions(command, context, kind)]
            yield f"## {name}\n\n```text\n{usage}\n```\n\n{text(command.help or '')}\n"
            for term, definition in entries:
                yield f"`{term}`\n: {text(definition)}\n"


def text(help: str) -> str:
    """Return Markdown that is displayed as this text.  Indented lines are code, in which nothing is escaped."""
    lines = (
        line if line.startswith("    ") else re.sub(r"([\\`*_\[\]<>|])", r"\\\1", line) for line in help.split("\n")
    )
    return "\n".join(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("sqlqueue-commands", Commands)
    return {"parallel_read_safe": True}
