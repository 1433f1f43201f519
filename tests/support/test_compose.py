"""The compose files start the same servers as the tests, and each contains the URL for the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.engines import ENGINES, EngineCase

COMPOSE = Path(__file__).parents[2] / "compose"
CONTAINED = [case for case in ENGINES if case.container]


def test_a_file_for_each_container() -> None:
    assert {path.stem for path in COMPOSE.glob("*.yaml")} == {case.name for case in CONTAINED}


@pytest.mark.parametrize("case", CONTAINED, ids=lambda case: case.name)
def test_compose_starts_the_server_of_the_tests(case: EngineCase) -> None:
    assert case.container
    text = (COMPOSE / f"{case.name}.yaml").read_text()
    port = case.container.port
    url = case.container.url(case.sync_driver, "127.0.0.1", port).render_as_string(hide_password=False)
    assert text.startswith(f"# {case.url_variable}={url}\n")
    assert set(re.findall(r"image: (\S+)", text)) == {case.container.image}
    assert f'"127.0.0.1:{port}:{port}"' in text
    assert all(f"{name}: " in text for name in case.container.environment)
