"""Counting who has read: whole reads only, each once, and never more than so many half-told ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from baton_serve.core.protocol.steps import Sent
from baton_serve.workers.rank_protocol.transfer_errors import BackendFailedError
from baton_serve.workers.transfer.nixl.nixl_agent import ERRORS, NixlAgent
from baton_serve.workers.transfer.read_notices import ReadNotice, ReadNotices
from tests.kits.patience import PATIENCE_S


@pytest.fixture
def agent() -> Iterator[NixlAgent]:
    one = NixlAgent("listener")
    yield one
    one.close()


@pytest.fixture
def reader(agent: NixlAgent) -> Iterator[NixlAgent]:
    """Both know each other, so that the agent of P has a notifier, too."""
    one = NixlAgent("reader")
    agent.add_remote(one.metadata())
    one.add_remote(agent.metadata())
    yield one
    agent.remove_remote(one.name)
    one.remove_remote(agent.name)
    one.close()


class Broken:
    """An agent of NIXL of which every poll fails."""

    num_polls = 0

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self.num_polls += 1
        raise next(theirs for theirs, ours in ERRORS.items() if ours is BackendFailedError)("as if a peer had gone")


def test_all_readers_have_to_tell_and_none_counts_twice(agent: NixlAgent) -> None:
    notices = ReadNotices(agent)
    for rank, lease_id, reader in ((0, "a", "e-1"), (0, "a", "e-1"), (1, "a", "f-1"), (0, "b", "e-1")):
        notices.tell(agent.name, ReadNotice(lease_id, 2, reader, rank))
    assert notices.take_sent() == []
    notices.tell(agent.name, ReadNotice("a", 2, "e-1", 1))
    notices.tell(agent.name, ReadNotice("c", 1, "e-9", 0))
    assert notices.take_sent() == [Sent("a", "e-1"), Sent("c", "e-9")]
    assert notices.take_sent() == []


def test_nothing_new_is_nothing_heard(agent: NixlAgent) -> None:
    assert ReadNotices(agent).listen() is False


def test_a_notifier_that_fails_keeps_back_no_notification(
    agent: NixlAgent, reader: NixlAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notices, told = ReadNotices(agent), ReadNotices(reader)
    broken, end = Broken(), time.monotonic() + PATIENCE_S
    told.tell(agent.name, ReadNotice("a", 1, "e-1", 0))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(agent, "_notifier", broken)
        while not notices.listen() and time.monotonic() < end:
            told.listen()  # only calls of its sender make the notification leave
    assert notices.take_sent() == [Sent("a", "e-1")]
    assert len(caplog.records) == broken.num_polls.bit_length(), "the 1st, 2nd, 4th, 8th... is logged"


def test_both_are_polled_when_both_fail(agent: NixlAgent, reader: NixlAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"_agent": Broken(), "_notifier": Broken()}
    with monkeypatch.context() as patch:
        for name, broken in both.items():
            patch.setattr(agent, name, broken)
        with pytest.raises(BackendFailedError):
            agent.notifications()
    assert [broken.num_polls for broken in both.values()] == [1, 1]
