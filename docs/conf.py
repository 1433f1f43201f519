"""The configuration with which Sphinx builds this site: `nox -s docs`, where every warning is an error."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "sqlqueue"
author = "the sqlqueue authors"
project_copyright = author
version = release = version_of("sqlalchemy-queue")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "public_api",
    "command_line",
]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False  # would turn the two hyphens of an option into a dash

html_theme = "furo"
html_title = f"{project} {version}"
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("Lease", "OrderBy", "OnConflict", "Tasks", "Where", "Schedule")}

# Names of other projects are not linked, so that the build needs no network; nor are type variables and internal types.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!sqlqueue\b|\.).*"),
    (r"py:class", r"sqlqueue\..*\.([A-Z]|_Enqueues|Attempt|Handler|Health|QueueSpec|Register|Transact)"),
]
