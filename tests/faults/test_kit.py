"""What the tests of faults stand on: who dies is noticed, and CI leaves nothing out."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.torture.shape import Shape
from tests.kits.whole import faults


@pytest.mark.faults
async def test_who_dies_is_not_up_any_more_wherever_it_ran(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, Shape(prefill=0, decode=1, routers=0).specs)
    ends: asyncio.Queue[str] = asyncio.Queue()
    cluster.on_end = lambda name, _: ends.put_nowait(name)
    async with cluster:
        assert cluster.up("decode") == ["decode-0"]
        cluster.signal("decode-0", signal.SIGKILL)
        assert await ends.get() == "decode-0"
        assert cluster.up("decode") == []


@pytest.mark.parametrize(("in_ci", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)])
def test_what_cannot_be_tested_is_skipped_at_home_only(
    monkeypatch: pytest.MonkeyPatch, in_ci: bool, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(faults, "IN_CI", in_ci)
    with pytest.raises(outcome, match="there is no such thing"):
        faults.skip("there is no such thing")
