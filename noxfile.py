"""The project's checks: `nox -s tests` runs the tests, `nox -l` lists all sessions."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PROJECT["project"]["optional-dependencies"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
SQLALCHEMY = {"2.0": "SQLAlchemy~=2.0.38", "2.1": "SQLAlchemy~=2.1.0"}
GRAMMARS = ["@griffithswaite/ts-plsql-parser@1.1.1", "antlr4@4.13.2"]

# Its declared requirement excludes SQLAlchemy 2.1, although it works with that version.
COCKROACHDB = "sqlalchemy-cockroachdb"
DRIVERS = ",".join(extra for extra in EXTRAS if extra != "cockroachdb")

# Some machines set it. The tests' child processes import everything again.
COMPILING = {"PYTHONDONTWRITEBYTECODE": None}

# What each call guarantees, and which tests show it. All other tests are left to `matrix`, and so are those of servers
# that die and those that count what servers read.
GUARANTEES = Path("docs/explanation/semantics.md")
ELSEWHERE = ("tests/clusters/", "tests/outages/", "tests/suite/test_plans.py", "tests/suite/test_costs.py")

# Even on few cores, since many tests wait. Each process collects all tests and starts servers of its own.
SIDE_BY_SIDE = ("-n", "4")


def group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(PROJECT, name))


def names_paths(arguments: list[str]) -> bool:
    """Return whether one of pytest's arguments is an existing file or folder, or a test in one: `path::test`."""
    return any(os.path.exists(given.partition("::")[0]) for given in arguments)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and the layers of the package."""
    session.install("-e", ".", *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def typing(session: nox.Session) -> None:
    """Type-check the package, the bench, tests/typing, which is never run, and the code in the documentation."""
    # the documentation's code imports the tests' dependencies
    session.install("-e", f".[{DRIVERS}]", *group("typing"), *group("test"))
    session.run("mypy")
    session.run("pyright")
    session.run("pytest", "tests/docs/test_types.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken link, or a public name without a docstring, is an error."""
    session.install("-e", ".[alembic,asyncio,cli,cron,dashboard]", *group("docs"))
    site = Path(session.create_tmp()).resolve() / "site"
    session.run("sphinx-build", "-W", "--keep-going", "-n", "-E", "-q", "docs", str(site), *session.posargs)
    session.log(f"{site}/index.html")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that the page of guarantees names on every engine that is available here; `matrix` runs all."""
    named = re.findall(r"\(\.\./\.\./(tests/\w+/\w+\.py)\)", GUARANTEES.read_text("utf-8"))
    run_tests(session, SQLALCHEMY["2.1"], files=sorted({file for file in named if not file.startswith(ELSEWHERE)}))


@nox.session(python=PYTHONS)
@nox.parametrize("sqlalchemy", list(SQLALCHEMY))
def matrix(session: nox.Session, sqlalchemy: str) -> None:
    """Run the whole suite on every Python with each SQLAlchemy."""
    run_tests(session, SQLALCHEMY[sqlalchemy])


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the suite with the oldest supported versions."""
    requirements = [*PROJECT["project"]["dependencies"], *(one for name in DRIVERS.split(",") for one in EXTRAS[name])]
    run_tests(session, *sorted({one.replace(">=", "==") for one in requirements if ">=" in one}))


def run_tests(session: nox.Session, *versions: str, files: Sequence[str] = ()) -> None:
    """Run the tests in these files, in all if there are none, or in those that are given on the command line."""
    session.install("-e", f".[{DRIVERS}]", *group("test"), *versions)
    session.install("--no-deps", COCKROACHDB)
    cache = Path(session.virtualenv.location).resolve() / "pytest"
    failures = cache / "v" / "cache" / "lastfailed"
    # these have their own sessions, with parsers, clusters and type checkers
    apart = [f"--ignore=tests/{each}" for each in ("grammar", "clusters", "docs/test_types.py")]
    command = ["pytest", "-o", f"cache_dir={cache}", *apart]
    if not names_paths(session.posargs):
        command += files
    # otherwise all processes compile the same modules at the same time
    session.run(*command, "--collect-only", "-qq", *session.posargs, env=COMPILING, silent=True)
    try:
        session.run(*command, *SIDE_BY_SIDE, "--cache-clear", *session.posargs, env=COMPILING)
    except CommandFailed:
        failed = json.loads(failures.read_text()) if failures.exists() else session.error("pytest did not run")
        session.warn("Failed tests are run once more, one after another.")
        again = ("--last-failed", "--last-failed-no-failures=none", "-n", "0")
        session.run(*command, *session.posargs, *again, env=COMPILING)
        session.warn("\n".join(["Flaky: failed at first, passed when run alone.", *failed]))


@nox.session
def drivers(session: nox.Session) -> None:
    """Run the conformance suite and the tests of errors and notifications with every driver of the engines here.

    Drivers without wheels for this platform are tested if MariaDB's client library can be compiled against.
    """
    session.install("-e", f".[{DRIVERS}]", *group("test"), *group("drivers"), SQLALCHEMY["2.1"])
    if shutil.which("mariadb_config") or shutil.which("mysql_config"):
        session.install(*group("drivers-in-c"))
    else:
        session.warn(f"{', '.join(group('drivers-in-c'))} are skipped: install libmariadb-dev and a C compiler")
    session.run("pytest", "-rs", "tests/drivers", *SIDE_BY_SIDE, *session.posargs, env=COMPILING)


@nox.session
def grammar(session: nox.Session) -> None:
    """Parse the statements for SQL Server and Oracle, and bind their names; needs Node.js, Java, HSQLDB and ICU."""
    session.install("-e", f".[{DRIVERS}]", *group("test"), "pythonnet", "dotnetcore2", "jpype1")
    session.install("--no-deps", "mssql-cli==1.0.0")
    tools = Path(session.create_tmp()).resolve()
    # OpenSSL 1.1, for Microsoft's binder; no wheel with it is for newer versions of Python
    wheel = ("--no-deps", "--only-binary=:all:", "--python-version", "3.10", "pymssql==2.2.5")
    session.install("--upgrade", "--target", str(tools / "openssl"), *wheel)
    options = ("--silent", "--ignore-scripts", "--legacy-peer-deps", "--prefix", str(tools / "node"))
    session.run("npm", "install", *options, *GRAMMARS, external=True)
    parsers = {
        "SQLQUEUE_GRAMMAR_NODE": str(tools / "node"),
        "SQLQUEUE_GRAMMAR_OPENSSL": str(tools / "openssl"),
        "SQLQUEUE_REQUIRE_GRAMMAR": "1",
    }
    # a parser checks all statements in one call, which takes minutes on a busy machine
    patient = ("-o", "faulthandler_timeout=660")
    session.run("pytest", "tests/grammar", *patient, *session.posargs, env=parsers)


@nox.session
def babelfish(session: nox.Session) -> None:
    """Run the suite on Babelfish, which speaks T-SQL: `nox -s babelfish -- URL [pytest options]`.

    The database must be empty. Runs all folders of tests that Babelfish supports, or the given ones. Not part of any
    other session, because the server (https://babelfishpg.org) has to be built from source.
    """
    urls = [given for given in session.posargs if "://" in given] or [os.environ.get("SQLQUEUE_TEST_BABELFISH_URL")]
    if len(urls) != 1 or not urls[0]:
        session.error(
            "Babelfish for PostgreSQL supports SQL Server's protocol and dialect. Build it (https://babelfishpg.org),"
            " run tests/support/babelfish.sql in its PostgreSQL database, create an empty database, and pass its URL"
            " here or as SQLQUEUE_TEST_BABELFISH_URL: mssql+pyodbc://ada:password@host/queues?driver=FreeTDS&port=1433"
            "&TDS_Version=7.4&ClientCharset=UTF-8"
        )
    session.install("-e", f".[{DRIVERS}]", *group("test"), SQLALCHEMY["2.1"])
    chosen = {
        "SQLQUEUE_TEST_BABELFISH_URL": urls[0],
        "SQLQUEUE_REQUIRE": "babelfish",
        "SQLQUEUE_TEST_ENGINES": "babelfish",
    }
    options = [given for given in session.posargs if "://" not in given]
    if not names_paths(options):
        options += [f"tests/{folder}" for folder in ("suite", "check", "worker", "outbox", "migrations")]
    session.run("pytest", "-rs", *options, env={**COMPILING, **chosen})


@nox.session
def clusters(session: nox.Session) -> None:
    """Test a Galera cluster of three nodes, and PostgreSQL with a standby, in containers, while nodes die."""
    session.install("-e", f".[{DRIVERS}]", *group("test"), SQLALCHEMY["2.1"])
    session.run("pytest", "tests/clusters", *session.posargs, env={**COMPILING, "SQLQUEUE_REQUIRE_CLUSTERS": "1"})


@nox.session
def stalls(session: nox.Session) -> None:
    """Measure how long readers and writers wait while a large table becomes a queue; takes URLs of test databases."""
    session.install("-e", f".[{DRIVERS}]", *group("test"))
    session.run("python", "-m", "bench.measurements.stalls", *session.posargs)


@nox.session
def package(session: nox.Session) -> None:
    """Check the wheel as a user installs it: it contains only the package, and runs outside the checkout."""
    session.install("build[uv]")
    directory = Path(session.create_tmp()).resolve()
    session.run("python", "-m", "build", "--installer", "uv", "--outdir", str(directory / "dist"))
    (wheel,) = (directory / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    strangers = [name for name in names if not name.startswith(("sqlqueue/", "sqlalchemy_"))]
    if strangers:
        session.error(f"the wheel contains {strangers}")
    pages = [path for folder in ("templates", "static") for path in Path("sqlqueue/dashboard", folder).iterdir()]
    missing = [str(path) for path in pages if path.as_posix() not in names]
    if missing or not pages:
        session.error(f"the wheel lacks {missing}")
    session.run("uv", "venv", "--clear", "--quiet", "--python", "python", str(directory / "venv"))
    programs = directory / "venv" / "bin"
    install = ("uv", "pip", "install", "--quiet", "--python", str(programs / "python"))
    smoke = directory / "smoke"
    smoke.mkdir(exist_ok=True)
    for number in range(100):
        (smoke / f"{number}.txt").write_text(f"{number}\n")
    session.chdir(smoke)
    session.run(*install, str(wheel))
    session.run(str(programs / "python"), "-c", "import sqlqueue", external=True)
    session.run(*install, f"{wheel}[cli]")
    session.run(str(programs / "sqlqueue"), "demo", external=True)
    session.run(*install, f"{wheel}[cli,dashboard]")
    session.run(str(programs / "python"), "-c", "import sqlqueue.dashboard", external=True)
    session.run(str(programs / "sqlqueue"), "dashboard", "--help", external=True)
