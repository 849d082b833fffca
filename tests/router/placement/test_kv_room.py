"""``kv_room``: the decode worker with the most cache left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.protocol.worker import WorkerLoad
from router.placement.kv_room import DEFAULT_NEW_TOKENS, KvRoom
from tests.kits.router.placement import prefilled, with_blocks, worker

if TYPE_CHECKING:
    from router.placement import OnGone


def test_cached_blocks_are_room_as_free_ones_are() -> None:
    a, b = with_blocks("a", free=50), with_blocks("b", free=10, cached=41)
    assert KvRoom([]).pick([a, b], prefilled(num_tokens=1)) is b


def test_room_is_tokens_not_blocks() -> None:
    a, b = with_blocks("a", free=50, block_size=16), with_blocks("b", free=30, block_size=32)
    assert KvRoom([]).pick([a, b], prefilled(num_tokens=1)) is b


@pytest.mark.parametrize(
    ("num_tokens", "max_new_tokens", "blocks"), [(144, 16, 10), (145, 16, 11), (0, 16, 1), (16, None, None)]
)
def test_what_was_sent_since_the_report_counts(num_tokens: int, max_new_tokens: int | None, blocks: int | None) -> None:
    policy = KvRoom([])
    blocks = blocks or 1 + DEFAULT_NEW_TOKENS // 16
    a, b = with_blocks("a", free=100), with_blocks("b", free=100 - blocks, in_flight=5)
    about = prefilled(num_tokens=num_tokens, max_new_tokens=max_new_tokens)
    assert policy.pick([a, b], about) is a
    assert policy.pick([a, b], about) is a, "as much room now, and fewer requests"
    assert policy.pick([a, b], about) is b


def test_a_prompt_of_unknown_length_is_estimated() -> None:
    policy = KvRoom([])
    a, b = with_blocks("a", free=100), with_blocks("b", free=90)
    assert policy.pick([a, b], prefilled(b"x" * 4 * 16 * 20)) is a
    assert policy.pick([a, b], prefilled()) is b


def test_a_new_report_has_what_was_sent_before_in_it() -> None:
    policy = KvRoom([])
    a, b = with_blocks("a", free=100), with_blocks("b", free=90)
    policy.pick([a, b], prefilled(num_tokens=16 * 50))
    a.report(WorkerLoad(free_blocks=95), 2.0)
    assert policy.pick([a, b], prefilled(num_tokens=1)) is a


def test_who_has_not_reported_is_left_out_unless_nobody_has() -> None:
    policy = KvRoom([])
    silent, full, bare = with_blocks("a", free=100), with_blocks("b", free=0, in_flight=9), worker("c", in_flight=3)
    silent.load_is_old = True
    assert policy.pick([silent, full, bare], prefilled()) is full
    assert policy.pick([silent, bare], prefilled()) is silent, "the less loaded"


def test_a_new_engine_has_been_promised_nothing() -> None:
    on_gone: OnGone = []
    policy = KvRoom(on_gone)
    a, b = with_blocks("a", free=100), with_blocks("b", free=90)
    policy.pick([a, b], prefilled(num_tokens=16 * 50))
    for listener in on_gone:
        listener("engine-a")
    assert policy.pick([a, b], prefilled()) is a
