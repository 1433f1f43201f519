"""The demo, on every engine, including failures."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rich.console import Console
from sqlalchemy import URL, Engine, NullPool, func, inspect, select, update
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sqlqueue import QueueSession, Status
from sqlqueue.cli import application
from sqlqueue.evaluation.demo import application as folders
from sqlqueue.evaluation.demo.application import Base, File, Found, Receipt, read, scan
from sqlqueue.evaluation.demo.run import Display, Tally, count, run, tables
from sqlqueue.evaluation.support import EvaluationError, connect, sessions
from tests.support.harness import Database
from tests.support.processes import PROGRAM, run_program

LEASE = File.__queue__.lease


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "sub" / "empty").mkdir(parents=True)
    for n in range(30):
        (folder / "sub" / f"{n}.txt").write_text(f"file {n}\n" * n)
    (folder / "nothing").touch()
    (folder / "grüße 🎈").write_text("no end of line")
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with tables(f"sqlite:///{tmp_path}/demo.db", keep=True, drop=False) as engine:
        yield engine


@pytest.fixture
def Session(engine: Engine) -> sessionmaker[QueueSession]:
    return sessions(engine)


def enqueue(Session: sessionmaker[QueueSession], *paths: str) -> None:
    with Session.begin() as session:
        session.enqueue(File, [{"id": n, "path": path, "size": 0} for n, path in enumerate(paths, 1)])


def silent() -> Display:
    return Display(Console(file=io.StringIO()), Console(file=io.StringIO()))


# -- a run ------------------------------------------------------------------------------------------------------------


def test_every_file_is_done_once_even_if_a_worker_is_killed(sync_db: Database, folder: Path) -> None:
    found = list(scan(folder))
    with tables(sync_db.url.render_as_string(hide_password=False), keep=False, drop=True) as engine:
        tally = run(engine, folder, found, 2, silent())
        files = all_files(engine)
    assert (tally.files, tally.done, tally.lost, tally.twice, tally.failed) == (32, 32, 0, 0, 0)
    assert tally.taken_over >= 4  # those of the killed worker; on a busy machine another lease may expire
    assert tally.taken_over == sum(file.attempt > 1 for file in files)
    for file in files:
        content = (folder / file.path).read_bytes()
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        assert (file.lines, file.words, file.size) == (content.count(b"\n"), len(content.split()), len(content))
    assert not inspect(sync_db.engine).has_table(File.__tablename__)


def all_files(engine: Engine) -> Sequence[File]:
    with sessions(engine)() as session:
        return session.scalars(select(File)).all()


def test_the_command_prints_the_tally(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept.db"
    ended = run_program(["sqlqueue", "demo", folder, "--workers", 2, "--url", url, "--keep"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.strip("│ ").split("│")[:2] for line in ended.stdout.splitlines() if "│" in line]
    numbers = {name.strip(): number.strip() for name, number in lines}
    assert numbers["files"] == numbers["done"] == "32"
    assert numbers["lost"] == numbers["done twice"] == numbers["failed"] == "0"
    assert "Killed worker 1" in ended.stdout
    assert f"Kept: {url}" in ended.stdout
    refused = CliRunner().invoke(application(), ["demo", str(folder), "--url", url])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("sqlqueue demo: sqlqueue_demo_file and sqlqueue_demo_receipt already exist")


def test_a_temporary_database_leaves_nothing_behind(folder: Path) -> None:
    with TemporaryDirectory() as temporary:  # the test's own directory has too long a path for the sockets of processes
        command, environment = [*PROGRAM, "demo", str(folder), "--workers", "1"], os.environ | {"TMPDIR": temporary}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert os.listdir(temporary) == []


def test_a_vanished_file_is_retried_and_then_discarded(engine: Engine, folder: Path) -> None:
    found = [*scan(folder), Found("vanished", 1)]
    display = silent()
    tally = run(engine, folder, found, 2, display)
    assert (tally.done, tally.failed, tally.lost, tally.twice) == (32, 1, 0, 0)
    assert tally.is_clean
    assert isinstance(display.output.file, io.StringIO)
    assert "1 failed: FileNotFoundError: No such file or directory" in display.output.file.getvalue()
    (vanished,) = (file for file in all_files(engine) if file.path == "vanished")
    assert (vanished.status, vanished.attempt) == (Status.DISCARDED, vanished.max_attempts)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_an_interrupt_ends_the_command_with_all_of_its_processes(folder: Path, tmp_path: Path) -> None:
    for n in range(4_000):
        (folder / f"more-{n}").touch()
    url = f"sqlite:///{tmp_path}/demo.db"
    program = subprocess.Popen(
        [*PROGRAM, "demo", str(folder), "--url", url], stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    wait_until_done(url, 1)
    os.killpg(program.pid, signal.SIGINT)  # like a terminal, to the whole process group
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert errors == "Stopped. The workers have ended, and the tables were dropped.\n"
    assert eventually_empty(program.pid)
    with connect(url, poolclass=NullPool).connect() as connection:
        assert inspect(connection).get_table_names() == []


def wait_until_done(url: str, files: int) -> None:
    engine = connect(url, poolclass=NullPool)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            exists = inspect(connection).has_table(Receipt.__tablename__)
            if exists and (connection.scalar(select(func.count()).select_from(Receipt)) or 0) >= files:
                return
        time.sleep(0.02)
    pytest.fail("nothing was done")


def eventually_empty(group: int) -> bool:
    deadline = time.monotonic() + 60
    while any(True for _ in living(group)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def living(group: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            yield int(entry.name)


# -- the counting of results ------------------------------------------------------------------------------------------


def test_the_tally_shows_what_is_done_twice_and_what_is_lost(Session: sessionmaker[QueueSession]) -> None:
    enqueue(Session, "a", "b", "c")
    done = {"status": Status.COMPLETED.value, "sha256": "0" * 64, "attempt": 1}
    with Session.begin() as session:
        session.execute(update(File).where(File.id < 3).values(done))
        session.add_all([Receipt(file_id=1, attempt=1, worker=""), Receipt(file_id=1, attempt=2, worker="")])
    with Session() as session:
        tally = count(session, 3)
    assert (tally.done, tally.twice, tally.lost) == (1, 1, 2)  # b has no receipt, c is not done
    assert not tally.is_clean


@pytest.mark.parametrize(("lost", "twice"), [(1, 0), (0, 1)])
def test_the_exit_status_is_1_if_a_file_was_lost_or_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lost: int, twice: int
) -> None:
    tally = Tally(files=3, done=3 - lost, taken_over=0, failed=0, twice=twice, errors=())
    monkeypatch.setattr("sqlqueue.evaluation.demo.run.run", lambda *_: tally)
    assert CliRunner().invoke(application(), ["demo", str(folder)]).exit_code == 1


# -- the folder -------------------------------------------------------------------------------------------------------


def test_only_regular_files_are_found(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "config").touch()
    (folder / "sub" / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "link").symlink_to(folder / "nothing")
    (folder / "dangling").symlink_to(folder / "gone")
    os.mkfifo(folder / "fifo")
    os.close(os.open(os.fsencode(folder) + b"/no text \xff", os.O_CREAT))
    assert len(list(scan(folder))) == 32


@pytest.mark.parametrize("chunk", [1, 2, 3, 1_000])
def test_words_and_lines_do_not_depend_on_where_a_chunk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(folders, "_CHUNK", chunk)
    content = b" one two\nthree\n\n four\tfive  "
    (tmp_path / "file").write_bytes(content)
    contents = read(tmp_path / "file")
    assert (contents.lines, contents.words) == (3, 5)
    assert contents.sha256 == hashlib.sha256(content).hexdigest()


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://", "processes cannot share an in-memory database"),
        ("sqlite+aiosqlite:///x.db", "aiosqlite is an asyncio driver"),
        ("nonsense", "the URL is not of the form dialect"),
        ("nosuch://host/name", "nosuch"),
        ("mysql+pymysql://host:port/name", "the port of the URL is not a number"),
        ("sqlite:////no/such/folder/x.db", "cannot connect: unable to open database file"),
    ],
)
def test_an_unsuitable_url_is_rejected_in_one_line(url: str, reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason), tables(url, keep=False, drop=False):
        pass


def test_control_characters_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Console(), Console(stderr=True))
    display.say("a \x1b[2J\u202e [red]file[/red]")
    display.complain("\r\x07")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a \\x1b[2J\\u202e [red]file[/red]\n", "\\r\\x07\n")


@pytest.mark.parametrize(("name", "reason"), [("", "there are no files below"), ("missing", "does not exist")])
def test_a_folder_without_files_is_rejected(tmp_path: Path, name: str, reason: str) -> None:
    result = CliRunner().invoke(application(), ["demo", str(tmp_path / name)])
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_password_is_not_shown() -> None:
    assert "secret" not in str(connect(URL.create("mysql+pymysql", "me", "secret", "localhost")).url)


def test_version() -> None:
    assert CliRunner().invoke(application(), ["--version"]).output.startswith("sqlqueue 0.")


def test_the_library_does_not_import_the_extra_and_the_command_names_it() -> None:
    look = "import sys, sqlqueue, sqlqueue.cli; print({'rich', 'typer', 'click'} & set(sys.modules)); "
    hide = "sys.modules['typer'] = None; sqlqueue.cli.main()"
    ended = subprocess.run([sys.executable, "-c", look + hide], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "set()\n")
    assert ended.stderr.startswith("The sqlqueue command line needs an extra: pip install 'sqlalchemy-queue[cli]', the")


def test_the_tables_of_the_demo_have_names_of_their_own() -> None:
    assert all(name.startswith("sqlqueue_demo_") for name in Base.metadata.tables)
