"""The prefix index, and the policies that go by it: ``prefix`` and ``affinity``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.placement.chunks import CHUNK_BYTES, MAX_BYTES, NUM_BYTES, PARTS, SIZES, chunk_hashes
from baton_serve.router.placement.policies.affinity import Affinity
from baton_serve.router.placement.policies.prefix import Prefix
from baton_serve.router.placement.prefix_index import GENERATIONS, PrefixIndex
from baton_serve.router.pool import WorkerPool
from tests.kits.router.placement import prefilled, prompt, worker

#: Prompts over a small alphabet of chunks, so that they share beginnings; a hash is of everything before, as in life.
PROMPTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6).map(
    lambda letters: tuple(hash("".join(letters[: i + 1])) for i in range(len(letters)))
)
SENT = st.lists(st.tuples(st.sampled_from(["one", "two"]), PROMPTS), max_size=30)


# --- chunks


@given(st.integers(0, 2 * MAX_BYTES))
def test_all_but_a_small_part_of_every_prompt_is_in_chunks(num_bytes: int) -> None:
    num_chunks = len(chunk_hashes(b"x" * num_bytes, "m"))
    assert NUM_BYTES[num_chunks] == sum(SIZES[:num_chunks]) <= num_bytes
    if num_chunks < len(SIZES):
        assert num_bytes < NUM_BYTES[num_chunks] * (1 + 1 / PARTS) + CHUNK_BYTES


# --- the index


@given(SENT, PROMPTS)
def test_an_index_with_room_finds_the_longest_beginning_that_was_sent(
    sent: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    index = PrefixIndex(1000 * CHUNK_BYTES)
    for key, chunks in sent:
        index.note(key, chunks)
    for key in ("one", "two"):
        shared = [
            sum(1 for i in range(len(asked)) if asked[: i + 1] == chunks[: i + 1]) for k, chunks in sent if k == key
        ]
        assert index.longest(key, asked) == max(shared, default=0)


@given(SENT, PROMPTS, st.integers(1, 8))
def test_the_index_is_bounded_and_never_claims_a_chunk_without_those_before(
    sent: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...], room: int
) -> None:
    index = PrefixIndex(room * CHUNK_BYTES)
    for key, chunks in sent:
        index.note(key, chunks)
        assert len(index) <= 2 * (room + room // (GENERATIONS - 1))
        assert index.longest(key, chunks) == min(len(chunks), room), "what was sent last is known, as far as it fits"
    for key in ("one", "two"):
        held = [index.longest(key, asked[: num + 1]) == num + 1 for num in range(len(asked))]
        assert held == [num < index.longest(key, asked) for num in range(len(asked))]


@given(SENT, PROMPTS)
def test_a_forgotten_worker_has_nothing_and_the_other_keeps_everything(
    sent: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    index = PrefixIndex(1000 * CHUNK_BYTES)
    for key, chunks in sent:
        index.note(key, chunks)
    before = index.longest("two", asked)
    index.forget("one")
    assert (index.longest("one", asked), index.longest("two", asked)) == (0, before)
    index.forget("two")
    index.forget("two")
    assert len(index) == 0


@given(SENT, PROMPTS, st.integers(1, 8), st.sets(st.sampled_from(["one", "two"])))
def test_holders_of_a_chunk_are_those_that_have_it_whenever_they_were_first_asked_for(
    sent: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...], room: int, forgotten: set[str]
) -> None:
    early, late = PrefixIndex(room * CHUNK_BYTES), PrefixIndex(room * CHUNK_BYTES)
    assert len(early.holders) == 0
    for index in (early, late):
        for key, chunks in sent:
            index.note(key, chunks)
        for key in forgotten:
            index.forget(key)
    known = {chunks[: num + 1] for _, chunks in sent for num in range(len(chunks))}
    for index in (early, late):
        for some in known:
            has_it = {key for key in ("one", "two") if index.longest(key, some) == len(some)}
            assert index.holders.of(some[-1]) == has_it
        assert index.holders.longest(asked) == max(index.longest(key, asked) for key in ("one", "two"))
        assert len(index.holders) <= len(index)


@given(SENT, PROMPTS, st.integers(1, 8), st.sets(st.sampled_from(["one", "two"])))
def test_a_prompt_is_new_if_no_worker_has_its_beginning(
    sent: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...], room: int, forgotten: set[str]
) -> None:
    index = PrefixIndex(room * CHUNK_BYTES)
    for key, chunks in sent:
        index.note(key, chunks)
        assert not index.is_new(chunks)
        generations = [one for each in index._sent.values() for one in each.generations]
        assert index._num_with[chunks[0]] == sum(chunks[0] in one.firsts() for one in generations)
    for key in forgotten:
        index.forget(key)
    assert index.is_new(asked) == (not any(index.longest(key, asked) for key in ("one", "two")))
    assert index.is_new(())
    for key in ("one", "two"):
        index.forget(key)
    assert index.is_new(asked) and not index._num_with


def test_the_least_recently_sent_chunk_goes_first() -> None:
    index = PrefixIndex(3 * CHUNK_BYTES)
    for chunks in ((1, 2), (3, 4), (1, 2), (5,)):
        index.note("w", chunks)
    assert [index.longest("w", some) for some in ((1, 2), (3, 4), (5,))] == [2, 1, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(16, 40))
def test_the_newest_short_prompts_that_fill_the_room_are_known(lengths: list[int], room: int) -> None:
    index = PrefixIndex(room * CHUNK_BYTES)
    prompts = [tuple(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)]
    for chunks in prompts:
        index.note("w", chunks)
    num_chunks = 0
    for chunks in reversed(prompts):
        num_chunks += len(chunks)
        if num_chunks > room - GENERATIONS * max(lengths):
            break
        assert index.longest("w", chunks) == len(chunks)


def test_the_end_of_a_long_prompt_goes_first() -> None:
    index = PrefixIndex(30 * CHUNK_BYTES)
    long = tuple(range(1000, 1012))
    index.note("w", long)
    for number in range(17):
        index.note("w", (2 * number, 2 * number + 1))
    assert index.longest("w", long) == 40 - 2 * 17
    for number in range(17, 20):
        index.note("w", (2 * number, 2 * number + 1))
    assert index.longest("w", long) == 0


def test_a_large_chunk_takes_the_room_of_many_small_ones() -> None:
    one, other = (tuple(range(first, first + len(SIZES))) for first in (1000, 2000))
    index = PrefixIndex(sum(SIZES))
    index.note("w", (1, 2, 3))
    index.note("w", one)
    index.note("w", other)
    assert (index.longest("w", (1, 2, 3)), index.longest("w", other)) == (0, len(other))
    left = index.longest("w", one)
    assert sum(SIZES[:left]) <= sum(SIZES) // (GENERATIONS - 1) < sum(SIZES[: left + 1])


def test_a_worker_with_a_smaller_cache_has_a_smaller_index() -> None:
    index = PrefixIndex(100 * CHUNK_BYTES)
    index.note("w", (1, 2, 3), max_bytes=2 * CHUNK_BYTES)
    assert index.longest("w", (1, 2, 3)) == 2
    index.note("w", (9,), max_bytes=0)
    assert len(index) == 1
    with pytest.raises(ValueError, match="room"):
        PrefixIndex(0)


# --- prefix


def test_a_prompt_goes_where_its_beginning_went() -> None:
    policy = Prefix([])
    workers = [worker(f"w{i}") for i in range(4)]
    first = policy.pick(workers, prompt(b"a" * 4000))
    others = [one for one in workers if one is not first]
    first.usage.in_flight = 10
    assert policy.pick(workers, prompt(b"a" * 4000 + b"b" * 3000)) is first
    assert policy.pick(workers, prompt(b"c" * 4000)) in others, "another one goes to the least loaded"


def test_the_worker_with_more_of_a_prompt_is_taken_then_the_less_loaded_one() -> None:
    policy = Prefix([])
    a, b = worker("a"), worker("b")
    policy.pick([a], prompt(b"x" * 4000))
    policy.pick([b], prompt(b"x" * 2000))
    a.usage.in_flight = 5
    assert policy.pick([a, b], prompt(b"x" * 4000)) is a
    policy.pick([b], prompt(b"x" * 4000))
    assert policy.pick([a, b], prompt(b"x" * 4000)) is b


def test_a_beginning_that_is_a_small_part_of_the_prompt_does_not_count() -> None:
    policy = Prefix([])
    a, b = worker("a"), worker("b")
    policy.pick([a], prompt(b"s" * 1024))
    a.usage.in_flight = 1
    assert policy.pick([a, b], prompt(b"s" * 1024 + b"a" * 9000)) is b
    assert policy.pick([a, b], prompt(b"s" * 1024 + b"z" * 1024)) is b, "it has it by now, too"


@pytest.mark.parametrize(("has_it", "other", "taken"), [(25, 0, True), (26, 0, False), (90, 61, True), (90, 59, False)])
def test_a_worker_that_is_much_busier_than_the_least_loaded_is_not_taken(has_it: int, other: int, taken: bool) -> None:
    policy = Prefix([])
    a, b = worker("a"), worker("b")
    policy.pick([a], prompt(b"x" * 8000))
    a.usage.in_flight, b.usage.in_flight = has_it, other
    assert (policy.pick([a, b], prompt(b"x" * 8000)) is a) is taken


def test_prompts_too_short_for_a_chunk_go_to_the_least_loaded() -> None:
    policy = Prefix([])
    a, b = worker("a", in_flight=1), worker("b")
    assert [policy.pick([a, b], prompt(b"hi")) for _ in range(3)] == [b, b, b]
    assert len(policy.index) == 0


def test_no_prompt_is_too_long() -> None:
    policy = Prefix([])
    policy.pick([worker("a")], prompt(b"x" * 1_000_000))
    assert len(policy.index) == len(SIZES) < 100
    assert NUM_BYTES[len(SIZES)] > MAX_BYTES * (1 - 1 / PARTS)


async def test_the_policy_forgets_an_engine_that_it_is_told_has_gone() -> None:
    pool = WorkerPool(4)
    policy = Prefix(pool.on_gone)
    policy.pick([worker("a")], prompt(b"x" * 4000))
    for listener in pool.on_gone:
        listener("engine-other")
    assert len(policy.index) > 0
    for listener in pool.on_gone:
        listener("engine-a")
    assert len(policy.index) == 0


async def test_the_policy_forgets_a_worker_that_was_added_by_url_and_removed() -> None:
    pool = WorkerPool(4)
    policy = Prefix(pool.on_gone)
    (added,) = pool.add_static(["http://x"], [])
    policy.pick([added], prompt(b"x" * 4000))
    assert len(policy.index) > 0
    pool.remove_static(added)
    assert len(policy.index) == 0


# --- affinity


def test_the_next_turn_goes_to_the_worker_that_decoded_the_last_one() -> None:
    policy = Affinity([])
    workers = [worker(f"w{i}") for i in range(4)]
    first = policy.pick(workers, prefilled(b"turn one" * 300, 600))
    first.usage.in_flight = 10
    assert policy.pick(workers, prefilled(b"turn one" * 300 + b"turn two" * 200, 1000)) is first
    first.usage.in_flight = 60
    assert policy.pick(workers, prefilled(b"turn one" * 300 + b"turn two" * 200, 1000)) is not first
