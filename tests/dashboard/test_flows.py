"""The pages of batches: the list, one batch with its graph, and the place of a task."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import with_loader_criteria
from starlette.testclient import TestClient

from sqlqueue import Graph
from sqlqueue.dashboard.flows import BETWEEN_LAYERS, HEIGHT, WIDTH, draw
from sqlqueue.operations import FlowEdge, FlowNode
from tests.dashboard.models import Step
from tests.dashboard.serving import HOSTILE, dashboard, fill_batch


@pytest.fixture(autouse=True)
def filled_batch(sessions: Any) -> None:
    fill_batch(sessions)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_batches_are_listed_until_they_have_ended(app: TestClient, sessions: Any) -> None:
    assert "import 7 ○ unfinished , ✕ failed" in text_of(app.get("/batches").text)
    with sessions.begin() as session:
        session.cancel_batch(Step, "import 7")
    with sessions.begin() as session:
        session.advance(Step)
    app = TestClient(dashboard(sessions), headers=app.headers)
    assert "All batches have ended." in app.get("/batches").text
    assert "import 7 ✓ ended" in text_of(app.get("/batches?all=1").text)


def test_a_batch_with_its_failures_graph_and_actions(app: TestClient) -> None:
    html = app.get("/batch?key=import+7").text
    assert html.count("<script") == 1, "the page's own"
    text = text_of(html)
    assert "Failed: step" in text
    assert "1 ○ available , 41 ◌ waiting , 1 ▶ running , 1 ✓ completed , 1 ⊘ cancelled , 1 ✕ discarded" in text
    svg = html.partition('<svg class="graph"')[2].partition("</svg>")[0]
    assert svg.count("<rect") == 9
    assert svg.count('class="edge failed"') == 1
    assert svg.count('class="edge final"') == 2
    assert '<a href="/queue/step?batch=import+7" aria-label="40 tasks of Step: 40 waiting">' in svg
    for action in ("retry", "cancel"):
        (path,) = re.findall(rf'href="(/queue/step/confirm/{action}\?[^"]*)"', html)
        assert path == f"/queue/step/confirm/{action}?scope=batch&amp;batch=import+7"
    form = app.get("/queue/step/confirm/retry?scope=batch&batch=import+7").text
    assert "Retry: batch import 7 1 task will be changed: 1 discarded." in text_of(form)
    assert '<a class="button" data-close href="/batch?key=import+7">Back</a>' in form
    fields = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]+)"', form))
    done = app.post("/queue/step/retry", data=fields, follow_redirects=True)
    assert done.url.path == "/batch"
    assert "Done: retry batch import 7. 1 of 1 tasks changed" in text_of(done.text)
    assert "Only members of the batch" in app.get("/queue/step?batch=import+7").text
    assert "✕ discarded" not in text_of(app.get("/batch?key=import+7").text).partition("Members")[2]
    assert "No matching tasks." in app.get("/queue/step?batch=nothing").text
    assert app.get("/batch?key=nothing").status_code == app.get("/batch?key=a/b").status_code == 404
    assert app.get("/queue/step/confirm/cancel?scope=batch").status_code == 400
    label = app.get("/batch", params={"key": HOSTILE.replace("/", "")})
    assert (label.status_code, "is an event, not a batch: it is not open yet." in label.text) == (404, True)


@pytest.mark.parametrize("scanned", [4, 100])
def test_errors_of_tasks_that_were_not_run_link_to_what_has_failed(
    sessions: Any, app: TestClient, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.pages.SCAN", scanned)
    client = TestClient(dashboard(sessions), headers=app.headers)
    row = next(each for each in client.get("/errors").text.split("<tr>") if "not run: " in each)
    assert '<a href="/queue/step/task?key=43">Step 43</a>: retry that, and these wait again.' in row
    assert ("1+" in row, "/confirm/" in row) == (scanned == 4, False)


def test_a_task_links_to_what_is_around_it(app: TestClient) -> None:
    html = app.get("/queue/step/task?key=43").text
    place = html.partition('id="around"')[2].partition("</section>")[0]
    assert re.findall(r'href="([^"]+)"', place) == ["/batch?key=import+7", "/queue/step/task?key=44"]
    assert text_of(place).endswith("waits for this task, or has waited Step 44 ⊘ cancelled"), (
        "when one decides on a retry"
    )
    html = app.get("/queue/step/task?key=44").text
    place = html.partition('id="around"')[2].partition("</section>")[0]
    links = ["/batch?key=import+7", "/queue/step/task?key=43", "/queue/step?batch=import+7", "/queue/step/task?key=45"]
    assert re.findall(r'href="([^"]+)"', place) == links
    assert text_of(place).endswith("Step 45 (failure of this task) ○ available")
    place = app.get("/queue/step/task?key=46").text.partition('id="around"')[2].partition("</section>")[0]
    assert "waits for, or has waited for end of import 7" in text_of(place)
    assert "step" not in app.get("/queue/email/task?key=62").text.partition("<main")[2]


def test_sessions_that_see_some_tasks_see_those_of_a_batch(sessions: Any, app: TestClient) -> None:
    def add_criteria(state: Any) -> None:
        if state.is_select:
            mine = with_loader_criteria(Step, lambda cls: cls.name == "fetch", include_aliases=True)
            state.statement = state.statement.options(mine)

    event.listen(sessions, "do_orm_execute", add_criteria)
    assert "of which this session sees only some" in app.get("/batches").text
    text = text_of(app.get("/batch?key=import+7").text).partition("Members")[2]
    assert "1 ✓ completed" in text
    assert "waiting" not in text


def test_layers_lie_from_left_to_right(sessions: Any) -> None:
    with sessions.begin() as session:
        graph: Graph = session.graph(Step, "import 7")
    drawing = draw(graph)
    x = {box.node.name: box.x for box in drawing.boxes}
    assert all(x[edge.source] < x[edge.target] for edge in graph.edges)
    places = {(box.x, box.y) for box in drawing.boxes}
    assert len(places) == len(drawing.boxes)
    assert all(0 <= x < drawing.width and 0 <= y < drawing.height for x, y in places)


def drawn(*edges: tuple[str, str], states: Any = None) -> Graph:
    """Return a graph of tasks with these labels."""
    names = dict.fromkeys(name for edge in edges for name in edge)
    nodes = [
        FlowNode(name=name, label=name, entity=Step, identity=(name,), key=None, states=states or {"waiting": 1})
        for name in names
    ]
    found = [FlowEdge(source, target, "completed") for source, target in edges]
    return Graph(key="x", nodes=nodes, edges=found, left_out=0, members={})


def test_no_arrow_leads_behind_a_node() -> None:
    """Also if it passes layers on its way: it leads through a place of its own in each."""
    drawing = draw(drawn(("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("a", "e"), ("e", "d"), ("b", "d")))
    assert len(drawing.arrows) == 7
    for arrow in drawing.arrows:
        numbers = [int(each) for each in re.findall(r"\d+", arrow.path)]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        straight = [pair for pair in pairwise(points) if pair[0][1] == pair[1][1] and pair[1][0] - pair[0][0] > 100]
        assert len(points) == 4 + 4 * len(straight)
        for (x, y), (to_x, _) in straight:
            assert not any(box.x < to_x and x < box.x + WIDTH and box.y <= y <= box.y + HEIGHT for box in drawing.boxes)
        assert all(abs(x - to_x) <= BETWEEN_LAYERS for (x, y), (to_x, to_y) in pairwise(points) if y != to_y)
    assert {arrow.path.count("C") for arrow in drawing.arrows} == {1, 2, 3}


def test_tasks_that_wait_for_each_other_are_drawn(app: TestClient, sessions: Any) -> None:
    """They never run, which a page should show instead of never ending."""
    with sessions.begin() as session, session.batch("circle") as batch:
        first = batch.add(Step(name="first"))
        second = batch.add(Step(name="second"), after=first)
    with sessions.begin() as session:
        session.enqueue(third := Step(name="third"), after=second, into="circle")
        third.reports_to = session.merge(first).reports_to
    assert len(re.findall('class="edge completed"', app.get("/batch?key=circle").text)) == 3


def test_arrows_name_their_ends_and_nodes_their_worst_state_first() -> None:
    graph = drawn(("a", "b"), states={"completed": 19, "discarded": 1})
    drawing = draw(replace(graph, edges=[FlowEdge("a", "b", "failed")]))
    assert [arrow.title for arrow in drawing.arrows] == ["b waits for failure of a"]
    assert drawing.boxes[0].text.startswith("1 discarded, 19")


def test_a_page_says_what_tasks_wait_for_and_what_is_not_shown(
    app: TestClient, sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(app.get("/batch?key=import+7").text)
    assert "Step 45 ○ available failure of Step 44" in text
    assert "Step 46 ◌ waiting end of Step 47, Step 45" in text
    assert "9 nodes and 8 arrows from left to right." in text
    assert "not shown singly" not in text
    monkeypatch.setattr("sqlqueue.operations.graphs.MOST_NODES", 8)
    html = text_of(TestClient(dashboard(sessions), headers=app.headers).get("/batch?key=import+7").text)
    assert "1 task is not shown singly" in html
    assert html.index("not shown singly") < html.index("nodes and")
