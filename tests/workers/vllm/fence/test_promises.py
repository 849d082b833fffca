"""Slots and words, as P's scheduler gives them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.vllm.fence.promises import FIELD, NO_WORD, WORD_BITS, Promise, Promises, Told, promise_of
from baton_serve.workers.vllm.fence.words import ENDED, Words

NUM_SLOTS = 4


def test_a_request_keeps_its_promise_when_it_is_scheduled_again() -> None:
    promises = Promises(NUM_SLOTS)
    promises.begin("a")
    first = promises.promise("a")
    promises.begin("a")
    assert promises.promise("a") == first
    assert promises.news() == Told([], {"a": first})
    assert promises.news() == Told([], {})


def test_words_are_never_equal() -> None:
    promises = Promises(1000)
    for number in range(1000):
        promises.begin(str(number))
    begun = promises.news().begun.values()
    assert len({promise.word for promise in begun}) == len({promise.slot for promise in begun}) == 1000
    assert all(NO_WORD < promise.word < 1 << WORD_BITS for promise in begun)


def test_without_a_free_slot_nothing_is_promised() -> None:
    promises = Promises(1)
    promises.begin("a")
    promises.begin("b")
    assert promises.promise("b") is None
    promises.end("b")
    promises.drop("b")
    promises.end("a")
    promises.begin("b")
    assert promises.promise("b") is not None


def test_a_request_that_the_ranks_have_not_heard_of_is_dropped_without_a_word() -> None:
    promises = Promises(NUM_SLOTS)
    promises.begin("a")
    promises.drop("a")
    assert promises.news() == Told([], {})


@pytest.mark.parametrize(
    "params",
    [
        {},
        {FIELD: None},
        {FIELD: [1, 2]},
        {FIELD: {"slot": 1}},
        {FIELD: {"slot": -1, "word": 5}},
        {FIELD: {"slot": 1, "word": NO_WORD}},
        {FIELD: {"slot": 1, "word": -5}},
        {FIELD: {"slot": 1, "word": 1 << WORD_BITS}},
        {FIELD: {"slot": 1.5, "word": 5}},
        {FIELD: {"slot": "1", "word": 5}},
        {FIELD: {"slot": True, "word": 5}},
        {FIELD: {"slot": "\ud800", "word": 5}},
        {FIELD: {"\ud800": 1, "word": 5}},
    ],
)
def test_what_is_no_promise_is_none(params: dict[str, Any]) -> None:
    assert promise_of(params) is None


def test_a_promise_passes_through_the_parameters() -> None:
    promise = Promise(3, (1 << WORD_BITS) - 1)
    assert promise_of({"remote_host": "p", FIELD: promise.as_params()}) == promise


@given(st.lists(st.tuples(st.sampled_from(["begin", "step", "finish", "sent", "abort"]), st.sampled_from("abcdefgh"))))
def test_a_rank_has_the_words_of_what_is_kept_and_no_others(events: list[tuple[str, str]]) -> None:
    """A model of the scheduler: a request runs, is handed off, and ends when the rank says so, or is aborted."""
    promises, words = Promises(NUM_SLOTS), Words(NUM_SLOTS, 1)
    running: set[str] = set()
    kept: dict[str, Promise] = {}
    for event, request_id in events:
        if event == "begin" and request_id not in running and request_id not in kept:
            running.add(request_id)
            promises.begin(request_id)
        elif event == "finish" and request_id in running:
            running.remove(request_id)
            words.apply(promises.news())
            if (promise := promises.promise(request_id)) is not None:
                kept[request_id] = promise
        elif event == "sent" and request_id in kept:
            del kept[request_id]
            words.end([request_id], 1)
            promises.end(request_id)
        elif event == "abort" and request_id in running:
            running.remove(request_id)
            promises.drop(request_id)
        elif event == "step":
            words.apply(promises.news())
        table = words.array[: words.num_slots, 0].tolist()
        for promise in kept.values():
            assert table[promise.slot] == promise.word
    words.apply(promises.news())
    expected = {one.word for one_id in {*running, *kept} if (one := promises.promise(one_id)) is not None}
    assert {
        word for word in words.array[: words.num_slots, 0].tolist() if word != NO_WORD and not word & ENDED
    } == expected
