"""What every policy must do, and what the ones without memory do."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.worker import Role
from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES, OnGone
from baton_serve.router.placement.policies.round_robin import RoundRobin
from baton_serve.router.placement.policies.two_choices import TwoChoices
from baton_serve.router.pool import Worker
from baton_serve.router.pool.usage import Usage
from baton_serve.router.request.prompt_text import prompt_text
from baton_serve.router.settings import RouterSettings
from tests.kits.router.placement import prefilled, prompt, with_blocks, worker

#: Kind and name of every policy.
POLICIES = [*(("prefill", name) for name in PREFILL_POLICIES), *(("decode", name) for name in DECODE_POLICIES)]


class Watched(Worker):
    """One that a weak reference can be taken of."""


class Name(str):
    """The same of an engine id."""


def make(kind: str, name: str, on_gone: OnGone) -> Callable[[list[Worker], bytes], Worker]:
    """The policy as a function of workers and the prompt's text."""
    if kind == "prefill":
        prefill = PREFILL_POLICIES[name](on_gone)
        return lambda workers, text: prefill.pick(workers, prompt(text))
    decode = DECODE_POLICIES[name](on_gone)
    return lambda workers, text: decode.pick(workers, prefilled(text, len(text) // 4))


@pytest.mark.parametrize(("kind", "policies"), [("prefill", PREFILL_POLICIES), ("decode", DECODE_POLICIES)])
def test_settings_name_every_policy_and_no_other(kind: str, policies: dict[str, Any]) -> None:
    assert set(get_args(RouterSettings.model_fields[f"pick_{kind}"].annotation)) == set(policies)


@pytest.mark.parametrize(("kind", "name"), POLICIES)
@given(data=st.data())
def test_a_policy_returns_one_of_the_workers_it_was_given(kind: str, name: str, data: st.DataObject) -> None:
    pick = make(kind, name, [])
    everybody = [worker("bare", in_flight=3), *(with_blocks(f"w{i}", 10 * i, 5, in_flight=20 * i) for i in range(4))]
    some = st.lists(st.sampled_from(everybody), min_size=1, unique_by=id)
    for workers, text in data.draw(st.lists(st.tuples(some, st.sampled_from([b"", b"a" * 2000, b"b" * 5000])))):
        chosen = pick(workers, text)
        assert any(chosen is one for one in workers)


@pytest.mark.parametrize(("kind", "name"), POLICIES)
def test_workers_that_look_alike_all_get_work(kind: str, name: str) -> None:
    pick = make(kind, name, [])
    workers = [worker(f"w{i}") for i in range(3)]
    chosen = Counter(pick(workers, b"%d" % i * 3000).worker_id for i in range(60))
    assert set(chosen) == {"w0", "w1", "w2"}


@pytest.mark.interpreted
@pytest.mark.parametrize(("kind", "name"), POLICIES)
def test_nothing_is_kept_of_workers_that_went(kind: str, name: str) -> None:
    on_gone: OnGone = []
    pick = make(kind, name, on_gone)
    stays, goes = worker("a"), Watched("b", "http://x", Role.BOTH, Usage(9, 9, 16), engine_id=Name("engine-b"))
    ghosts: list[weakref.ref[Any]] = [weakref.ref(goes), weakref.ref(goes.engine_id)]
    for _ in range(3):
        assert pick([goes], b"x" * 3000) is goes
    for listener in on_gone:
        listener("engine-b")
        listener("never heard of")
    del goes
    gc.collect(1)  # the two young generations: a whole collection takes a second amid ten thousand tests
    assert [ghost() for ghost in ghosts] == [None, None]
    assert pick([stays], b"x" * 3000) is stays


def test_round_robin_takes_turns_also_around_one_that_is_full() -> None:
    policy = RoundRobin()
    a, b, c = workers = [worker("a", in_flight=90), worker("b"), worker("c")]
    assert [policy.pick(workers, prompt()) for _ in range(4)] == [a, b, c, a]
    assert policy.pick([a, c], prompt()) is c, "b, whose turn it was, is full"
    assert policy.pick(workers, prompt()) is a


def test_of_two_choices_the_less_loaded_is_taken() -> None:
    policy = TwoChoices(random.Random(1))
    workers = [worker(f"w{i}", in_flight=i) for i in range(4)]
    chosen = Counter(policy.pick(workers, prompt()).usage.in_flight for _ in range(600))
    assert chosen[3] == 0, "there is always a less loaded one beside it"
    assert chosen[0] > chosen[1] > chosen[2] > 0, "and it is not always the best"


# --- the prompt as policies see it


def test_prompts_that_begin_the_same_have_the_same_first_chunks() -> None:
    turns = [{"role": "user", "content": "x" * 1500}, {"role": "assistant", "content": "y" * 700}]
    first, second = prompt_text({"messages": turns}), prompt_text({"messages": [*turns, *turns]})
    earlier, later = prompt(first).chunks, prompt(second).chunks
    assert len(earlier) == len(first) // 512
    assert later[: len(earlier)] == earlier
    assert later[len(earlier)] not in earlier
    assert prompt(first, model="other").chunks != earlier


def test_a_change_changes_every_chunk_after_it() -> None:
    text = b"a" * 5000
    changed = b"a" * 600 + b"b" + b"a" * 4399
    same = [one == other for one, other in zip(prompt(text).chunks, prompt(changed).chunks, strict=True)]
    assert same == [True] + [False] * 8


@pytest.mark.parametrize("body", [{"prompt": "some text"}, {"prompt": [1, 2, 3]}, {"messages": [{"role": "user"}]}])
def test_every_kind_of_prompt_has_bytes(body: dict[str, Any]) -> None:
    assert prompt_text(body)


def test_chunks_are_made_once_and_only_for_who_asks() -> None:
    texts = []

    def text() -> bytes:
        texts.append(1)
        return b"a" * 1000

    asked = prompt()
    asked.text = text
    PREFILL_POLICIES["least_loaded"]([]).pick([worker("a"), worker("b")], asked)
    assert texts == []
    assert asked.chunks == asked.chunks
    assert texts == [1]
