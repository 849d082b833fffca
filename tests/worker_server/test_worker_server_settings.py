"""What settings become, and what is said about dangerous ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.main import warn
from workers.settings import WorkerSettings


def test_a_home_folder_is_expanded_once_for_all_who_load_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = WorkerSettings(model="~/models/m")
    assert settings.model == str(tmp_path / "models" / "m")
    assert settings.model_name == "m"


@pytest.mark.parametrize("model", ["org/name", "models/~m", "/models/m"])
def test_other_models_are_taken_as_they_are(model: str) -> None:
    assert WorkerSettings(model=model).model == model


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no such user"):
        WorkerSettings(model="~nobody-of-this-name/m")


@pytest.mark.parametrize("off", [True, False])
def test_a_fence_that_is_off_is_a_warning(off: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn(WorkerSettings(model="m", unsafe_disable_fence=off))
    assert ("unsafe_disable_fence is on" in caplog.text) == off
