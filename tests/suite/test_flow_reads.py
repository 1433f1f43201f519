"""What can be read of batches and workflows: results of predecessors, members, progress, lists and graphs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import with_loader_criteria

from sqlqueue import ArgumentError, Status, Worker, in_error_group, member_of
from sqlqueue.operations.graphs import around
from sqlqueue.testing import drain
from tests.suite.test_flows import work
from tests.support.flows import Note, Page, flow
from tests.support.harness import Actor, Database

__all__ = ["flow"]


def names(actor: Actor, *where: Any, of: Any = None) -> list[str]:
    return [page.name for page in actor.predecessors(Page, *where, of=of)]


def note(actor: Actor, name: str) -> Any:
    (found,) = actor.find(Note, Note.name == name)
    return found


def test_predecessors_of_tasks_with_one_set_several_sets_and_none(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        a, b, c = (batch.add(Page(name=name)) for name in "abc")
        many = batch.add(Page, [{"name": f"m{number}"} for number in range(3)])
        for name, after in {"ab": [a, b], "bc": [b, c], "one": [a], "many": [many], "all": [a, b, c, many]}.items():
            batch.add(Note(name=name), after=after)
        batch.then(Note(name="end"))
    with flow.begin() as session:
        stored = session.find(Page, Page.name == "a")[0]
        session.enqueue(Page(name="more"), into=stored)
        session.enqueue(Note(name="later"), after=[stored, session.find(Page, Page.name == "m1")[0]])
        found = {name: names(session, of=note(session, name)) for name in ("ab", "bc", "one", "many", "later", "end")}
        assert found == {
            "ab": ["a", "b", "more"],
            "bc": ["b", "c"],
            "one": ["a", "more"],
            "many": ["m0", "m1", "m2"],
            "later": ["m1", "a"],
            "end": ["m0", "m1", "m2", "a", "b", "c", "more"],
        }
        assert names(session, Page.name < "b", of=note(session, "ab")) == ["a"]
        assert names(session, of=stored) == []


@pytest.mark.one_engine
def test_predecessors_of_the_running_task(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.operations.flows._AT_ONCE", 3)
    worker = Worker(flow.sessions())
    sums: list[int] = []

    @worker.handler(Page)
    def number(page: Page) -> int:
        return int(page.name)

    async def collect(session: Any, note: Note) -> None:
        sums.append(sum([page.result async for page in session.predecessors(Page)]))

    def collect_in_thread(session: Any, note: Note) -> None:
        sums.append(sum(page.result for page in session.predecessors(Page)))

    worker.handler(Note)(collect if flow.is_async else collect_in_thread)
    with flow.begin() as session, session.batch() as batch:
        batch.add(Page, [{"name": str(number)} for number in range(10)])
        batch.then(Note(name="sum"))
    with flow.begin() as session:
        session.pass_to(lambda own: drain(worker, own))
    assert sums == [45]
    with flow.begin() as session, pytest.raises(ArgumentError, match="outside of a handler: give the task, of=task"):
        names(session)


def test_members_of_a_batch_as_a_criterion_and_their_progress(flow: Database) -> None:
    for key in ("import", "other"):
        with flow.begin() as session, session.batch(key) as batch:
            first = batch.add(Page(name="first"))
            batch.add(Page, [{"name": "a"}, {"name": "b"}], after=first)
            batch.add(Note(name="c"), after=first)
            batch.then(Note(name="end"), when="final")
    with flow.begin() as session:
        # a latch within a latch: what the criterion and the figures find are at any depth
        task = session.claim(Page, member_of(Page, "import"))
        session.enqueue(Note(name="late"), after=task, into="import")
        session.enqueue(Page(name="more"), into=task)
        session.complete(task)
        assert session.claim(Page, member_of(Page, "nothing")) is None
        assert sorted(page.name for page in session.find(Page, member_of(Page, "import"))) == [
            "a",
            "b",
            "first",
            "more",
        ]
        assert session.stats(Note, member_of(Note, "import"))[Status.WAITING] == 2
        found = session.progress(Page, "import")
        assert (found.total, found.unfinished, found.completed, found.opened_at) == (6, 5, 1, None)
        assert session.progress(Page, "nothing") is None
        assert [(each.key, each.unfinished) for each in session.batches(Page)] == [("import", 5), ("other", 4)]
    work(flow, "more")
    assert flow.committed.cancel_batch(Page, "other") == 0
    found = flow.committed.progress(Page, "import")
    assert (found.total, found.failed, found.discarded, found.cancelled) == (6, 5, 1, 4)
    assert flow.committed.batches(Page) == []
    ended = {each.key: (each.failed, each.broken_at is not None) for each in flow.committed.batches(Page, ended=True)}
    assert ended == {"import": (5, True), "other": (0, False)}
    assert flow.committed.retry(Page, member_of(Page, "import")) == 1
    assert flow.committed.cancel_batch(Page, "import", limit=2) == 2
    assert flow.committed.cancel_batch(Page, "import") == 3
    assert flow.committed.progress(Page, "import").unfinished == 0
    assert flow.committed.progress(Page, "other").completed == 4


def test_errors_of_tasks_that_were_not_run_name_what_has_failed(flow: Database) -> None:
    """However far down: there, a retry brings them back, and one of the group itself would do nothing."""
    with flow.begin() as session, session.batch("import") as batch:
        first = batch.add(Page(name="first"))
        second = batch.add(Page(name="second"), after=first)
        third = batch.add(Page(name="third"), after=second)
        batch.add(Note(name="fourth"), after=third)
    with flow.begin() as session:
        session.discard(failed := session.claim(Page), "boom")
        key = str(failed.id)
    flow.committed.advance(Page)
    groups = [(each, model) for model in (Page, Note) for each in flow.committed.errors(model)]
    told = [(each.pattern, each.tasks, each.retriable, each.because_of) for each, _ in groups]
    not_run, culprit = "not run: Page <n> was discarded", ("Page", key)
    assert told == [(not_run, 2, 0, culprit), ("boom", 1, 1, None), (not_run, 1, 0, culprit)]
    done = [flow.committed.retry(model, in_error_group(model, each.key)) for each, model in groups]
    assert done == [each.retriable for each, _ in groups]
    left = [each for model in (Page, Note) for each in flow.committed.errors(model)]
    assert [(each.pattern, each.unfinished, each.retriable) for each in left] == [("boom", 1, 0)]


@pytest.mark.one_engine
def test_the_progress_of_an_ended_batch_counts_the_members_that_the_session_sees(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page, [{"name": "mine"}, {"name": "theirs"}])
    work(flow)

    def restrict(state: Any) -> None:
        if state.is_select:
            state.statement = state.statement.options(with_loader_criteria(Page, Page.name == "mine"))

    with flow.begin() as session:
        assert session.progress(Page, "import").completed == 2
        event.listen(session.sync_session, "do_orm_execute", restrict)
        assert session.progress(Page, "import").completed == 1


def test_what_is_around_a_task_says_until_when_it_waits(flow: Database) -> None:
    whens = {"completed": "cancelled", "failed": "available", "final": "waiting"}
    with flow.begin() as session, session.batch("import") as batch:
        first = batch.add(Page(name="first"))
        notes = {when: batch.add(Note(name=when), after=first, when=when) for when in whens}
    with flow.begin() as session:
        session.discard(session.claim(Page), "boom")
    flow.committed.advance(Page)
    with flow.begin() as session:
        found = {when: session.run(around, each) for when, each in notes.items()}
        after = session.run(around, first).after
    assert {when: (each.when, [node.label for node in each.before]) for when, each in found.items()} == {
        when: (when, [f"Page {first.id}"]) for when in whens
    }
    assert {node.identity: node.when for node in after} == {(each.id,): when for when, each in notes.items()}


@pytest.mark.one_engine
def test_what_waits_for_a_task_alone_and_with_others_is_around_it(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        first, second = batch.add(Page(name="a")), batch.add(Page(name="b"))
        alone = batch.add(Note(name="alone"), after=first)
        both = batch.add(Note(name="both"), after=[first, second])
    with flow.begin() as session:
        found = session.run(around, first)
        session.enqueue(Note(name="event"), after="label:7")
        waiting = session.run(around, note(session, "event"))
    assert found.batch == "import"
    assert (waiting.batch, [node.key for node in waiting.before]) == (None, ["label:7"]), "an event is no batch"
    assert {node.identity for node in found.after} == {(alone.id,), (both.id,)}
    work(flow, "a", models=[Page])
    with flow.begin() as session:
        found = session.run(around, first)
    assert {node.identity: dict(node.states) for node in found.after} == {
        (alone.id,): {"cancelled": 1},
        (both.id,): {"cancelled": 1},
    }, "also after they were cancelled"


def test_a_list_counts_the_members_of_nested_batches_in_each(flow: Database) -> None:
    for key, into in (("outer", None), ("inner", "outer"), ("innermost", "inner")):
        with flow.begin() as session, session.batch(key, into=into) as batch:
            batch.add(Page, [{"name": f"{key} {number}"} for number in range(2)])
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "innermost 1"), "boom")
    flow.committed.advance(Page)
    listed = flow.committed.batches(Page)
    assert [(each.key, each.unfinished, each.failed) for each in listed] == [
        ("outer", 5, 1),
        ("inner", 3, 1),
        ("innermost", 1, 1),
    ]
    found = flow.committed.graph(Page, "outer").members
    assert found == {Page: {"available": 5, "discarded": 1}}, "as many as its progress and retry and cancel count"


@pytest.mark.one_engine
def test_graph_of_a_workflow(flow: Database) -> None:
    with flow.begin() as session, session.batch("order") as batch:
        a, b, c = (batch.add(Page(name=name)) for name in "abc")
        many = batch.add(Page, [{} for _ in range(13)], after=[a, b])
        batch.add(Note(name="bc"), after=[b, c], when="failed")
        batch.add(Note(name="all"), after=[many, c])
        batch.then(Note(name="end"), when="final")
    flow.committed.enqueue(Note(name="label"), after="label:7", into="order")
    flow.committed.enqueue(Note(name="too"), after="order")
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "a"), "boom")
    flow.committed.advance(Page)
    found = flow.committed.graph(Page, "order")
    with flow.begin() as session:
        labels = {f"Note {each.id}": each.name for each in session.find(Note)}
        labels |= {f"Page {each.id}": each.name for each in session.find(Page)}
    named = {node.name: labels.get(node.label, node.label) for node in found.nodes}
    states = {named[node.name]: dict(node.states) for node in found.nodes}
    assert states == {
        "label:7": {"closed": 1},
        "a": {"discarded": 1},
        "b": {"available": 1},
        "c": {"available": 1},
        "13 tasks of Page": {"cancelled": 13},
        "bc": {"waiting": 1},
        "all": {"cancelled": 1},
        "label": {"waiting": 1},
        "end": {"waiting": 1},
        "too": {"cancelled": 1},
    }
    inner = {(named[edge.source], named[edge.target], edge.when) for edge in found.edges}
    assert inner == {
        ("a", "13 tasks of Page", "completed"),
        ("b", "13 tasks of Page", "completed"),
        ("b", "bc", "failed"),
        ("c", "bc", "failed"),
        ("13 tasks of Page", "all", "completed"),
        ("c", "all", "completed"),
        ("label:7", "label", "completed"),
        *((name, "end", "final") for name in ("bc", "all", "label")),
        *((name, "too", "completed") for name in ("bc", "all", "label")),
    }
    assert [{named[node.name] for node in layer} for layer in found.layers] == [
        {"label:7", "a", "b", "c"},
        {"13 tasks of Page", "bc", "label"},
        {"all"},
        {"end", "too"},
    ]
    lines = found.mermaid().splitlines()
    assert lines[0] == "flowchart LR"
    assert '["13 tasks of Page<br/>13 cancelled"]' in "".join(lines)
    conditions = {"completed": "", "failed": "|failed|", "final": "|final|"}
    assert [f"    {source} -->{conditions[when]} {target}" for source, target, when in found.edges] == lines[11:]
    work(flow)
    states = {labels.get(n.label): dict(n.states) for n in flow.committed.graph(Page, "order").nodes}
    assert (states["end"], states["too"]) == ({"waiting": 1}, {"cancelled": 1})
    flow.committed.open_event(Page, "label:7")
    work(flow)
    states = {labels.get(n.label): dict(n.states) for n in flow.committed.graph(Page, "order").nodes}
    assert (states["end"], states["too"]) == ({"completed": 1}, {"cancelled": 1})
    assert flow.committed.graph(Page, "nothing") is None


@pytest.mark.one_engine
def test_a_graph_shows_tasks_of_no_batch_for_which_members_wait(flow: Database) -> None:
    page = Page(name="outside")
    flow.committed.enqueue(page)
    with flow.begin() as session, session.batch("order") as batch:
        batch.add(Page(name="a"))
    flow.committed.enqueue(Note(name="joined"), after=[page, "label:7"], into="order")
    found = flow.committed.graph(Page, "order")
    labels = {node.name: node.label for node in found.nodes}
    with flow.begin() as session:
        after = f"Note {note(session, 'joined').id}"
        before = f"Page {session.find(Page, Page.name == 'outside')[0].id}"
    assert {(labels[edge.source], labels[edge.target]) for edge in found.edges} == {(before, after), ("label:7", after)}


@pytest.mark.one_engine
def test_a_graph_shows_in_which_state_the_batches_are_for_which_members_wait(flow: Database) -> None:
    for key in ("ended", "failed", "unfinished"):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page(name=key))
    with flow.begin() as session, session.batch("order") as batch:
        batch.add(Page(name="member"))
    for key in ("ended", "failed", "unfinished"):
        flow.committed.enqueue(Note(name=key), after=key, into="order")
    with flow.begin() as session:
        session.complete(session.claim(Page, Page.name == "ended"))
        session.discard(session.claim(Page, Page.name == "failed"), "boom")
    flow.committed.advance(Page)
    nodes = flow.committed.graph(Page, "order").nodes
    assert {each.key: dict(each.states) for each in nodes if each.key} == {
        each: {each: 1} for each in ("ended", "failed", "unfinished")
    }


@pytest.mark.one_engine
def test_nodes_are_in_the_order_in_which_their_tasks_were_added(flow: Database) -> None:
    with flow.begin() as session, session.batch("chain") as batch:
        last: Any = ()
        for _ in range(12):
            last = batch.add(Page(), after=last)
        batch.then(Note(name="end"))
    keys = [node.identity for node in flow.committed.graph(Page, "chain").nodes]
    with flow.begin() as session:
        pages = sorted(page.id for page in session.find(Page))
        assert keys == [*((page,) for page in pages), (note(session, "end").id,)]


@pytest.mark.one_engine
def test_tasks_for_which_a_graph_has_no_room_stay_connected(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.operations.graphs.MOST_NODES", 5)
    with flow.begin() as session, session.batch("chain") as batch:
        last = batch.add(Page(name="0"))
        for number in range(1, 10):
            last = batch.add(Page(name=str(number)), after=last)
        batch.then(Note(name="end"), when="final")

    def drawn() -> tuple[list[str], dict[str, str]]:
        found = flow.committed.graph(Page, "chain")
        (note,) = flow.committed.find(Note)
        labels = {f"Page {page.id}": page.name for page in flow.committed.find(Page)} | {f"Note {note.id}": "end"}
        labels = {node.name: labels.get(node.label, node.label) for node in found.nodes}
        assert found.left_out == 6
        assert all(len(layer) == 1 for layer in found.layers), "nothing but the first task is a root"
        assert {edge.when for edge in found.edges if labels[edge.target] == "end"} <= {"final"}
        assert len({edge[:2] for edge in found.edges}) == len(found.nodes) - 1
        texts = {labels[name]: text for name, text in found.waits_text(3).items()}
        return [labels[layer[0].name] for layer in found.layers], texts

    order, _ = drawn()
    assert order == ["0", "1", "2", "3", "4", "6 more tasks"]
    flow.committed.complete(flow.committed.claim(Page))
    assert drawn()[0] == order, "the choice does not depend on what runs"
    work(flow, "8", models=[Page])
    order, _ = drawn()
    assert order == ["0", "1", "2", "3", "4 more tasks", "8", "2 more tasks"]
    found = flow.committed.graph(Page, "chain")
    assert [dict(node.states) for node in found.nodes if node.label == "2 more tasks"] == [
        {"cancelled": 1, "available": 1}
    ]
    assert '["4 more tasks<br/>4 completed"]' in found.mermaid()


@pytest.mark.one_engine
def test_a_graph_without_room_shows_the_first_layers(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.operations.graphs.MOST_NODES", 4)
    with flow.begin() as session, session.batch("two") as batch:
        first = batch.add(Page(name="1"), after=batch.add(Page(name="0")))
        last = batch.add(Note(name="2"), after=first)
        batch.add(Note(name="also 1"), after=batch.add(Page(name="also 0")))
    found = flow.committed.graph(Page, "two")
    assert [[node.label.split()[0] for node in layer] for layer in found.layers] == [
        ["Page"] * 2,
        ["Page", "Note"],
        ["1"],
    ]
    assert last.id not in {identity for node in found.nodes if node.entity is Note for identity in node.identity or ()}


@pytest.mark.one_engine
def test_a_callback_waits_for_the_ends_of_what_is_not_shown(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with flow.begin() as session, session.batch("two") as batch:
        for name in "ab":
            batch.add(Page(name=f"after {name}"), after=batch.add(Page(name=name)))
        batch.then(Note(name="end"))
    assert flow.committed.discard(Note, error="boom") == 1
    for most, expected in (
        (1, [["4 more tasks"], ["Note"]]),
        (2, [["Page", "1 more task"], ["2 more tasks"], ["Note"]]),
    ):
        monkeypatch.setattr("sqlqueue.operations.graphs.MOST_NODES", most)
        found = flow.committed.graph(Page, "two")
        layers = [[node.label for node in layer] for layer in found.layers]
        assert [[label.split()[0] if label[-1].isdigit() else label for label in layer] for layer in layers] == expected


@pytest.mark.one_engine
def test_words_say_until_when_tasks_wait(flow: Database) -> None:
    with flow.begin() as session, session.batch("order") as batch:
        pages = [batch.add(Page(name=name)) for name in "abcd"]
        for when in ("completed", "failed", "final"):
            batch.add(Note(name=when), after=pages, when=when)
    found = flow.committed.graph(Page, "order")
    with flow.begin() as session:
        labels = {f"Note {each.id}": each.name for each in session.find(Note)}
        first, second = (f"Page {each.id}" for each in sorted(session.find(Page), key=lambda each: each.id)[:2])
    texts = found.waits_text(2)
    told = {labels.get(node.label): texts[node.name] for node in found.nodes}
    some = f"{first}, {second} and 2 more"
    assert told == {None: "", "completed": some, "failed": f"failure of {some}", "final": f"end of {some}"}


@pytest.mark.one_engine
def test_text_in_mermaid_cannot_change_the_graph(flow: Database) -> None:
    flow.committed.enqueue(Note(name="x"), after='"]; click n1 "<b>')
    with flow.begin() as session, session.batch("order") as batch:
        batch.add(Page(name="a"))
    flow.committed.enqueue(Note(name="y"), into="order", after='"]; click n1 "<b>')
    text = flow.committed.graph(Page, "order").mermaid()
    assert '(["#34;#93;#59; click n1 #34;#60;b#62;<br/>closed"])' in text
