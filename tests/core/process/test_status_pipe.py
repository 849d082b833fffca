"""What a process tells its parent, and what it does when nobody listens."""

from __future__ import annotations

import os

import pytest

from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.core.protocol.status import Failed, Progress, decode


def test_each_status_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines:
        pipe = StatusPipe(writing)
        pipe.tell(Progress(text="loading"))
        assert pipe.give_up("worker", "no model") == 1
        os.close(writing)
        assert [decode(line) for line in lines] == [Progress(text="loading"), Failed(error="no model")]
    assert capsys.readouterr().err == "worker: no model\n"


def test_a_parent_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    StatusPipe(writing).tell(Progress(text="loading"))
    os.close(writing)
    StatusPipe(None).tell(Progress(text="loading"))
