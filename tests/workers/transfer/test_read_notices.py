"""Counting who has read: whole reads only, each once, and never more than so many half-told ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.protocol.steps import Sent
from workers.transfer.nixl.nixl_port import NixlAgent
from workers.transfer.notices.notice_codec import ReadNotice
from workers.transfer.notices.read_notices import MAX_OPEN, ReadNotices


@pytest.fixture
def agent() -> Iterator[NixlAgent]:
    one = NixlAgent("listener")
    yield one
    one.close()


def test_all_readers_have_to_tell_and_none_counts_twice(agent: NixlAgent) -> None:
    notices = ReadNotices(agent)
    for rank, lease_id, reader in ((0, "a", "e-1"), (0, "a", "e-1"), (1, "a", "f-1"), (0, "b", "e-1")):
        notices.tell(agent.name, ReadNotice(lease_id, 2, reader, rank))
    assert notices.take_sent() == []
    notices.tell(agent.name, ReadNotice("a", 2, "e-1", 1))
    notices.tell(agent.name, ReadNotice("c", 1, "e-9", 0))
    assert notices.take_sent() == [Sent("a", "e-1"), Sent("c", "e-9")]
    assert notices.take_sent() == []


def test_of_too_many_that_are_half_told_the_oldest_is_forgotten(agent: NixlAgent) -> None:
    notices = ReadNotices(agent)
    for number in range(MAX_OPEN + 1):
        notices.tell(agent.name, ReadNotice("a", 2, f"e-{number}", 0))
    for number in (MAX_OPEN, 0):
        notices.tell(agent.name, ReadNotice("a", 2, f"e-{number}", 1))
    assert notices.take_sent() == [Sent("a", f"e-{MAX_OPEN}")]


def test_nothing_new_is_nothing_heard(agent: NixlAgent) -> None:
    assert ReadNotices(agent).listen() is False
