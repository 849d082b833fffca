"""The screen at the end of a start: what it tells people to type can be typed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from baton_serve.baton.up.welcome import command_name, first_of


def test_the_model_that_it_shows_is_no_adapter() -> None:
    assert first_of([{"id": "a", "parent": "m"}, {"id": "m", "parent": None}, {"id": "z"}]) == "m"
    assert first_of([]) == ""


def test_where_its_environment_is_active_it_is_called_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    assert command_name() == "baton"


def test_elsewhere_it_is_called_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = Path(sys.executable).parents[1]
    monkeypatch.chdir(environment)
    assert command_name() == "bin/baton"
    monkeypatch.chdir(tmp_path)
    assert command_name() == str(environment / "bin/baton")
