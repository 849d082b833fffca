"""The parts without I/O: bodies, P's answer, placement, the queue, the pool, histograms."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.errors import NotFoundError, UnavailableError
from core.protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from router.metrics.metrics import Buckets
from router.placement import Ahead, Prompt, available
from router.placement.least_loaded import LeastLoaded
from router.pool import LOAD_TTL_S, Place, Worker, WorkerPool
from router.pool.model_card import ModelFacts
from router.queue.worker_queue import WorkerQueue
from router.request.bodies import LegBodies
from router.request.client_request import Ask
from router.settings import RouterSettings
from router.steps.prefill_answer import PrefillAnswer
from router.upstream.worker_errors import error_event, from_worker, may_try_another

PROMPT = Prompt("m", 1, "")


def worker(name: str = "w", role: Role = Role.DECODE, **kwargs: Any) -> Worker:
    return Worker(worker_id=name, url="http://x", role=role, limit=kwargs.pop("limit", 4), **kwargs)


# --- bodies


@given(
    st.dictionaries(
        st.sampled_from(["model", "stream", "max_tokens", "temperature", "stop", "seed", "min_tokens", "n", "user"]),
        st.none() | st.integers(0, 9) | st.text(max_size=5),
    )
)
def test_legs_are_json_and_keep_what_the_client_asked(body: dict[str, Any]) -> None:
    bodies = LegBodies(body)
    raw = b'{"remote_block_ids":[[1,2]],"x":18446744073709551615}'
    to_d, alone, to_p = (
        json.loads(bodies.decode(raw)),
        json.loads(bodies.decode(None)),
        json.loads(bodies.prefill(hand_off=True, ours=True)),
    )
    wanted = {name: value for name, value in body.items() if value is not None and name != "n"}
    assert to_d.pop("kv_transfer_params")["x"] == 2**64 - 1
    assert to_d == alone
    assert {name: value for name, value in to_d.items() if name in wanted} == wanted
    assert (to_p["max_tokens"], to_p["stream"]) == (wanted.get("max_tokens", 1), False)
    assert json.loads(bodies.prefill(hand_off=True, ours=False))["max_tokens"] == 1
    assert to_p.get("seed") == to_d.get("seed")


# --- P's answer


def answer(*, ours: bool = True, **kwargs: Any) -> PrefillAnswer:
    body = {"id": "cmpl-x", "model": "m", "choices": [{"text": "a", "finish_reason": "length"}], **kwargs}
    return PrefillAnswer(json.dumps(body).encode(), hand_off=True, ours=ours)


def ask(**kwargs: Any) -> Ask:
    fields = {"chat": False, "model": "m", "stream": True, "include_usage": False, "max_new_tokens": 9, "priority": 0}
    return Ask(**{**fields, "user": "", **kwargs})


def test_the_bytes_for_d_are_those_that_came() -> None:
    raw = b'{"remote_block_ids": [[1,  2]], "lease_id":"l", "unknown":{"deep":[18446744073709551615]}}'
    made = PrefillAnswer(
        b'{"id":"x","model":"m","choices":[{}],"kv_transfer_params":%s}' % raw, hand_off=True, ours=True
    )
    assert made.kv_transfer_params == raw
    assert made.summary.lease_id == "l"
    assert not made.has_first_token


def test_whole_is_what_leaves_nothing_to_a_d() -> None:
    continued = answer(kv_transfer_params={"first_token": 1, "remote_num_tokens": 99})
    assert not continued.is_whole(ask())
    assert continued.is_whole(ask(max_new_tokens=1))
    assert not answer(kv_transfer_params={}).is_whole(ask(max_new_tokens=1)), "no first token of ours: D samples"
    stopped = [{"text": "a", "finish_reason": "stop"}]
    assert answer(choices=stopped).is_whole(ask()) and answer(choices=stopped, ours=False).is_whole(ask())


def test_length_without_blocks_is_a_full_context_only_from_a_p_of_ours() -> None:
    assert answer().is_whole(ask()) and answer(kv_transfer_params=None).is_whole(ask())
    assert not answer(ours=False).is_whole(ask()), "one token was asked for, so any other engine says length"
    assert not answer(choices=[{"text": "a", "finish_reason": "abort"}]).is_whole(ask())


def test_the_first_event_is_of_the_same_fingerprint_as_those_of_d() -> None:
    assert json.loads(answer(system_fingerprint="fp_1").first_events(ask())[6:])["system_fingerprint"] == "fp_1"
    assert "system_fingerprint" not in json.loads(answer(system_fingerprint=None).first_events(ask())[6:])


def test_logprobs_are_passed_on() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": None, "text_offset": [0]}
    made = answer(choices=[{"text": "", "logprobs": logprobs, "finish_reason": "length"}])
    assert made.shows_text
    assert json.loads(made.first_events(ask())[6:])["choices"][0]["logprobs"] == logprobs


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"id":"x","model":"m","choices":[]}', b'{"id":5}'])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(ValueError):
        PrefillAnswer(body, hand_off=True, ours=True)


# --- errors of workers


def test_engines_errors_keep_their_fields() -> None:
    error = from_worker(400, b'{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}')
    assert (error.status, error.message, error.type, error.code) == (400, "no", "BadRequestError", "400")
    assert from_worker(503, b"<html>").status == 502
    assert from_worker(302, b"").status == 502
    assert [may_try_another(from_worker(status, b"")) for status in (400, 404, 413, 422, 429, 500, 302)] == [
        False,
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_an_error_event_is_found_behind_a_role_chunk() -> None:
    error = error_event(b'data: {"choices":[]}\n\ndata: {"error":{"message":"no","code":400}}\n\n')
    assert error is not None
    assert (error.status, error.message) == (400, "no")
    assert error_event(b'data: {"choices":[{"text":"data: {\\"error\\""}]}\n\n') is None


# --- placement and the pool


def test_room_counts_what_others_sent_and_what_we_did_since() -> None:
    one = worker(limit=10)
    one.in_flight = 2
    one.report(WorkerLoad(running=5, waiting=1, reading=1), 0.0)
    assert one.occupied == 7
    one.in_flight = 4
    assert one.occupied == 9
    one.in_flight = 0
    assert (one.occupied, one.room) == (5, 5)


def status(load: WorkerLoad, tp: int = 1) -> WorkerStatus:
    record = WorkerRecord(
        worker_id="w",
        engine_id="e",
        role=Role.DECODE,
        model="m",
        url="http://x",
        internal_url="",
        compatibility_hash="",
        max_model_len=9,
        block_size=1,
        num_blocks=9,
        max_num_seqs=4,
        tp=tp,
    )
    return WorkerStatus(record=record, load=load)


async def test_a_worker_has_as_many_ranks_as_it_says() -> None:
    pool = WorkerPool(4)
    pool.apply([status(WorkerLoad(), tp=2)])
    assert [worker.tp for worker in pool] == [2]


async def test_a_load_that_is_not_heard_again_counts_for_a_while_only() -> None:
    now_s = 100.0
    woken: list[int] = []
    pool = WorkerPool(4, clock=lambda: now_s)
    full = status(WorkerLoad(running=4))
    pool.apply([full])
    (one,) = pool
    pool.on_room.append(lambda: woken.append(one.room))
    now_s += LOAD_TTL_S - 0.1
    assert not pool.forget_old_loads()
    assert one.room == 0
    pool.apply([full])  # because of another worker: nothing new about this one
    now_s += 0.2
    assert pool.forget_old_loads()
    assert (one.room, woken[-1]) == (4, 4), "who waits is told"
    pool.enter(one)
    assert one.room == 3
    pool.apply([status(WorkerLoad(running=4, draining=True))])
    assert one.room == 0
    now_s += LOAD_TTL_S
    pool.forget_old_loads()
    assert (one.room, one.takes_work) == (3, False), "leaving is for good"


async def test_what_the_list_repeats_is_not_corrected_again() -> None:
    pool = WorkerPool(4)
    full = status(WorkerLoad(running=2))
    pool.apply([full])
    (one,) = pool
    pool.enter(one)
    pool.apply([full])
    assert one.occupied == 3, "two that were reported, one sent since"


def test_least_loaded_by_share_and_in_turns() -> None:
    small, large = worker("s", limit=2), worker("l", limit=8)
    small.in_flight, large.in_flight = 1, 3
    policy = LeastLoaded()
    assert policy.pick([small, large], PROMPT) is large
    small.in_flight = large.in_flight = 0
    assert {policy.pick([small, large], PROMPT).worker_id for _ in range(4)} == {"s", "l"}


def test_who_is_available() -> None:
    full, ill, leaving, good, failed = (worker(name) for name in ("full", "ill", "leaving", "good", "failed"))
    full.in_flight, ill.healthy, leaving.load = 4, False, WorkerLoad(draining=True)
    everybody = [full, ill, leaving, good, failed]
    assert available(everybody, {failed}) == [good]
    assert available([failed], {failed}) == [failed], "nobody else is left"
    assert available([full, failed], {failed}) == [], "somebody else will have room"


def test_routes_pair_what_can_be_paired() -> None:
    pool = WorkerPool(4)
    with pytest.raises(UnavailableError):
        pool.route("m")
    static = pool.add_static(["http://p1", "http://p2", "http://b"], ["http://d1", "http://b"])
    p1, p2, both, d1 = static
    assert both.role is Role.BOTH
    for one, digest in [(p1, "x"), (p2, "y"), (both, "z"), (d1, "x")]:
        one.compatibility_hash = digest
        pool.learn_models(one, {"m": ModelFacts()})
    route = pool.route("m")
    assert (route.prefill, route.single) == ((p1,), False)
    assert route.readers(p1) == (d1,)
    with pytest.raises(NotFoundError):
        pool.route("other")
    assert pool.models() == ["m"]


# --- the queue


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=20), st.integers(1, 5))
def test_the_queue_hands_out_in_order_and_never_too_much(requests: list[tuple[int, bool]], places: int) -> None:
    asyncio.run(_queue_in_order(requests, places))


async def _queue_in_order(requests: list[tuple[int, bool]], places: int) -> None:
    one = worker(limit=places)
    one.healthy = False
    given_back: list[Place] = []
    queue = WorkerQueue(given_back.append)

    def pick(_ahead: Ahead) -> Place | None:
        if one.healthy and one.room > 0:
            one.in_flight += 1
            return Place(one)
        return None

    waiters = [queue.enter(pick, priority, number, "m") for number, (priority, _) in enumerate(requests)]
    tasks = [asyncio.create_task(waiter.place()) for waiter in waiters]
    await asyncio.sleep(0)
    for task, (_, leaves) in zip(tasks, requests, strict=True):
        if leaves:
            task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.healthy = True
    queue.wake()
    staying = [i for i, (_, leaves) in enumerate(requests) if not leaves]
    expected = sorted(staying, key=lambda i: (requests[i][0], i))
    served = [i for i in staying if waiters[i].future.done()]
    assert sorted(served) == sorted(expected[:places])
    assert one.in_flight == len(served) == min(places, len(staying))
    assert len(queue) == len(staying) - len(served)
    for i in served:
        tasks[i].cancel()  # handed a place and gone before it ran: the place comes back
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(given_back) == len(served)
    assert len(queue) == 0


async def test_a_group_without_room_does_not_block_another() -> None:
    queue = WorkerQueue(lambda _: None)
    free = Place(worker())
    first = queue.enter(lambda _: None, 9, 1, "full")
    second = queue.enter(lambda _: free, 0, 2, "free")
    assert not first.future.done()
    assert await second.place() is free
    assert first.fail(TimeoutError())
    with pytest.raises(TimeoutError):
        await first.place()
    assert len(queue) == 0


async def test_an_exception_is_its_own_waiters() -> None:
    queue = WorkerQueue(lambda _: None)
    free = Place(worker())
    broken = False

    def pick(_ahead: Ahead) -> Place | None:
        if broken:
            raise KeyError("a bug in a policy")
        return None

    first = queue.enter(pick, 9, 1, "broken")
    second = queue.enter(lambda _: free if broken else None, 0, 2, "free")
    broken = True
    queue.wake()
    assert await second.place() is free
    with pytest.raises(KeyError):
        await first.place()
    assert len(queue) == 0


# --- numbers and settings


@given(st.lists(st.floats(0, 10, allow_nan=False), max_size=50))
def test_buckets_are_cumulative(values: list[float]) -> None:
    buckets = Buckets((0.1, 1.0))
    for value in values:
        buckets.observe(value)
    assert buckets.cumulative() == [
        ("0.1", sum(value <= 0.1 for value in values)),
        ("1.0", sum(value <= 1.0 for value in values)),
        ("+Inf", len(values)),
    ]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"host": "0.0.0.0"}, "api_keys"),
        ({"redis_url": ""}, "redis_url"),
        ({"lease_renew_interval_ms": 4000}, "lease_renew_interval_ms"),
        ({"prefill": ["ftp://x"]}, "host:port"),
        ({"prefil": ["x:1"]}, "prefil"),
        ({"keep_alive_s": 0.5}, "keep_alive_s"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RouterSettings.model_validate(given)


def test_worker_addresses_become_urls() -> None:
    made = RouterSettings(prefill=("h:1",), decode=("https://d/base/",))
    assert (made.prefill, made.decode) == (("http://h:1",), ("https://d/base",))
    assert made.serves_admin
    assert not RouterSettings(host="0.0.0.0", allow_anonymous=True).serves_admin
