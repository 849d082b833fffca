"""Requests for several answers: one prefill and one lease for a prompt, a decode for each, and one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.request.choices.shared_prefill import SharedPrefill
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.states import State
from baton_serve.router.steps.run import Runner
from tests.kits.router.cluster import Cluster, body_for, chat, events, eventually
from tests.kits.router.stub_workers import Hang, Refuse, Reset, StreamThen, StubWorker, word

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATHS = pytest.mark.parametrize("path", [CHAT, TEXT])
NUM_TOKENS = 4
BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}


def whole(index: int, num_tokens: int = NUM_TOKENS) -> str:
    return "".join(word(i, index) for i in range(num_tokens))


def texts(choices: Iterable[dict[str, Any]]) -> dict[int, str]:
    """What each choice says, of whole answers or of a stream's events."""
    said: dict[int, str] = {}
    for one in choices:
        part = one.get("message") or one.get("delta") or {}
        said[one["index"]] = said.get(one["index"], "") + (one.get("text") or part.get("content") or "")
    return said


def streamed(text: str) -> dict[int, str]:
    return texts(one for event in events(text) if event != "[DONE]" for one in event["choices"])


async def trio(cluster: Cluster, *roles: str, seats: int | None = None, **more: Any) -> list[StubWorker]:
    """``seats``: how many places of each D are free, if not all of them."""
    workers = [await cluster.add(role, **more) for role in roles or ("prefill", "decode", "decode")]
    for worker in cluster.pool:
        worker.usage.full_at = seats if worker.role == "decode" else None
    return workers


@PATHS
async def test_all_choices_of_a_prompt_share_one_prefill_and_one_lease(cluster: Cluster, path: str) -> None:
    p, *decoders = await trio(cluster)
    answer = (await cluster.post(body_for(path, n=3, seed=5), path)).json()
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]
    assert texts(answer["choices"]) == {index: whole(index) for index in range(3)}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 3 * NUM_TOKENS)
    (asked,) = p.bodies
    assert asked["kv_transfer_params"] == {"do_remote_decode": True, "num_readers": 3}
    bodies = [body for d in decoders for body in d.bodies]
    assert sorted(body["seed"] for body in bodies) == [5, 6, 7] and "n" not in asked
    params = [body["kv_transfer_params"] for body in bodies]
    assert {one["lease_id"] for one in params} == {"leasep01", "leasep01_1", "leasep01_2"}
    assert sorted(one["first_token"] for one in params) == [-1, -1, 7]
    assert all(len(d.bodies) >= 1 for d in decoders), "they go where there is room"
    assert cluster.readers["leasep01"] == (3, {0, 1, 2})
    await eventually(cluster.is_idle)


@PATHS
async def test_a_stream_has_the_events_of_all_choices(cluster: Cluster, path: str) -> None:
    await trio(cluster)
    body = body_for(path, n=3, stream=True, stream_options={"include_usage": True})
    response = await cluster.post(body, path)
    *chunks, usage, done = events(response.text)
    assert done == "[DONE]" and usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3 * NUM_TOKENS
    assert streamed(response.text) == {index: whole(index) for index in range(3)}
    ends = [one["index"] for event in chunks for one in event["choices"] if one["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    request_id = response.headers["x-request-id"]
    assert {event["id"].partition("-")[2] for event in (*chunks, usage)} == {request_id}
    assert len({event["created"] for event in (*chunks, usage)}) == 1
    if path == CHAT:
        roles = [one["index"] for event in chunks for one in event["choices"] if one["delta"].get("role")]
        assert sorted(roles) == [0, 1, 2]
    await eventually(cluster.is_idle)


@pytest.mark.parametrize("ours", [True, False])
async def test_each_prompt_of_a_list_is_prefilled_and_answered(cluster: Cluster, ours: bool) -> None:
    p, d = await trio(cluster, "prefill", "decode", ours=ours)
    answer = (await cluster.post(body_for(TEXT, prompt=["a", "a", "c"]), TEXT)).json()
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]
    assert texts(answer["choices"]) == {index: whole(index if ours else 0) for index in range(3)}
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}
    assert sorted(body["prompt"] for body in p.bodies) == ["a", "a", "c"]
    assert all("num_readers" not in body["kv_transfer_params"] for body in p.bodies) and len(d.bodies) == 3
    await eventually(cluster.is_idle)


async def test_each_prompt_of_a_list_is_prefilled_once_for_several_answers(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    answer = (await cluster.post(body_for(TEXT, prompt=[[1], [2, 3]], n=2), TEXT)).json()
    assert texts(answer["choices"]) == {index: whole(index) for index in range(4)}
    assert [body["prompt"] for body in p.bodies] == [[1], [2, 3]]
    assert len(d.bodies) == 4 and answer["usage"]["prompt_tokens"] == 6
    await eventually(cluster.is_idle)


async def test_engines_that_know_of_no_choices_are_put_in_order(cluster: Cluster) -> None:
    """Each choice has a prefill of its own there: such a P may free the blocks when one has read."""
    p, d = await trio(cluster, "prefill", "decode", ours=False)
    response = await cluster.post(body_for(CHAT, n=2, stream=True), CHAT)
    assert streamed(response.text) == {0: whole(0), 1: whole(0)}
    assert {event["id"] for event in events(response.text)[:-1]} == {f"chatcmpl-{response.headers['x-request-id']}"}
    assert len(p.bodies) == 2 and len(d.bodies) == 2
    await eventually(cluster.is_idle)


async def test_choices_of_one_token_each_are_ps_alone(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    p.first_token = 9
    answer = (await cluster.post(body_for(TEXT, n=3, max_tokens=1), TEXT)).json()
    assert texts(answer["choices"]) == {index: word(0, index) for index in range(3)}
    assert len(p.bodies) == 3 and not d.bodies
    await eventually(cluster.is_idle)


async def test_a_first_token_that_ends_one_choice_leaves_the_blocks_to_the_others(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    p.finish_reason = "stop"
    answer = (await cluster.post(body_for(TEXT, n=3), TEXT)).json()
    assert texts(answer["choices"]) == {0: word(0), 1: whole(1), 2: whole(2)}
    assert len(p.bodies) == 1 and len(d.bodies) == 2
    await eventually(cluster.is_idle)


async def test_the_best_of_several_answers_is_shown(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    d.logprobs_of = {index: {"token_logprobs": [logprob]} for index, logprob in enumerate((-3.0, -1.0, -2.0))}
    answer = (await cluster.post(body_for(TEXT, n=1, best_of=3), TEXT)).json()
    assert texts(answer["choices"]) == {0: whole(1)} and len(d.bodies) == 3
    assert {body["logprobs"] for body in d.bodies} == {0}
    assert answer["usage"]["completion_tokens"] == 3 * NUM_TOKENS
    await eventually(cluster.is_idle)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failure", [Refuse(500, BROKEN), Reset(), Refuse(503, BROKEN)], ids=["500", "reset", "503"])
async def test_a_d_that_fails_costs_one_choice_its_place(cluster: Cluster, failure: Any, stream: bool) -> None:
    p, one, _ = await trio(cluster)
    one.script.append(failure)
    response = await cluster.post(body_for(CHAT, n=3, stream=stream), CHAT)
    found = streamed(response.text) if stream else texts(response.json()["choices"])
    assert found == {index: whole(index) for index in range(3)}
    assert len(p.bodies) == 1, "the same blocks are read again"
    await eventually(cluster.is_idle)


async def test_a_d_that_dies_in_a_stream_costs_one_choice_its_place(cluster: Cluster) -> None:
    p, one, other = await trio(cluster)
    act = StreamThen(2, "die")
    one.script.append(act)
    task = asyncio.create_task(cluster.post(body_for(CHAT, n=2, stream=True, max_tokens=8), CHAT))
    await eventually(lambda: len(one.bodies) + len(other.bodies) == 2)
    act.go.set()
    assert streamed((await task).text) == {0: whole(0, 8), 1: whole(1, 8)}
    assert len(p.bodies) == 2, "the prompt and the tokens so far are prefilled again"
    assert "num_readers" not in p.bodies[1]["kv_transfer_params"]
    await eventually(cluster.is_idle)


async def test_a_p_that_fails_is_asked_again_for_all(cluster: Cluster) -> None:
    one, other, _ = await trio(cluster, "prefill", "prefill", "decode")
    for p in (one, other):
        p.script.append(Refuse(500, BROKEN))
    answer = (await cluster.post(body_for(CHAT, n=2), CHAT)).json()
    assert texts(answer["choices"]) == {0: whole(0), 1: whole(1)}
    assert {body["kv_transfer_params"]["num_readers"] for p in (one, other) for body in p.bodies} == {2}
    await eventually(cluster.is_idle)


async def test_a_lost_lease_has_each_held_choice_prefilled_again(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode", seats=1)
    hang = d.hangs()
    task = asyncio.create_task(cluster.post(body_for(CHAT, n=3), CHAT))
    await cluster.until_state("held", 2)
    cluster.leases.tracked["leasep01"](LeaseState.EXPIRED)
    hang.release.set()
    assert texts((await task).json()["choices"]) == {index: whole(index) for index in range(3)}
    assert [body["kv_transfer_params"].get("num_readers") for body in p.bodies] == [3, None, None]
    await eventually(cluster.is_idle)


async def test_a_lease_is_kept_until_the_last_has_read(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode", seats=1)
    hang = Hang()
    d.script += [hang, None]
    task = asyncio.create_task(cluster.post(body_for(TEXT, n=2, stream=True), TEXT))
    await cluster.until_state("held")
    assert list(cluster.leases.tracked) == ["leasep01"] and not cluster.leases.released
    hang.release.set()
    assert streamed((await task).text) == {0: whole(0), 1: whole(1)}
    assert cluster.leases.released == ["leasep01"]
    await eventually(cluster.is_idle)


async def test_a_prompt_that_choices_share_was_computed_once(cluster: Cluster) -> None:
    await trio(cluster, "prefill", "decode")
    await cluster.post(body_for(TEXT, n=3), TEXT)
    (ended,) = cluster.ended()
    assert (ended.num_retries, len(cluster.workers[0].bodies)) == (0, 1)
    hang = cluster.workers[1].hangs()
    task = asyncio.create_task(cluster.post(body_for(TEXT, n=3, stream=True), TEXT))
    await cluster.until_state("reading", 1)
    (row,) = (await cluster.here.requests()).requests
    assert row.num_prefills == 1
    hang.release.set()
    await task


async def test_nothing_is_kept_for_choices_that_end_before_they_read(cluster: Cluster) -> None:
    """P's token ended the first choice, and the others end in the turn in which they could have read."""
    p, _ = await trio(cluster, "prefill", "decode")
    p.finish_reason = "stop"
    ending = asyncio.Event()
    settle = SharedPrefill.settle

    def settle_and_end(self: SharedPrefill[Any], *given: Any) -> None:
        settle(self, *given)
        if not ending.is_set():
            ending.set()
            (whole,) = cluster.active
            whole.deadline()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedPrefill, "settle", settle_and_end)
        response = await cluster.post(body_for(TEXT, n=3), TEXT)
    assert response.status_code == 504 and ending.is_set()
    await eventually(cluster.is_idle)
    assert cluster.leases.released == ["leasep01"]


@pytest.mark.settings(min_prefill_tokens=100)
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_a_choice_that_skips_p_reads_nothing(cluster: Cluster, reason: str) -> None:
    p, d = await trio(cluster, "prefill", "decode", seats=1)
    p.finish_reason = reason
    hang = d.hangs()
    task = asyncio.create_task(cluster.post(body_for(TEXT, n=3), TEXT))
    await eventually(lambda: len(p.bodies) == 1)
    hang.release.set()
    assert len(texts((await task).json()["choices"])) == 3
    assert [body["kv_transfer_params"].get("num_readers") for body in p.bodies] == [2]
    assert "kv_transfer_params" not in d.bodies[0] and len(d.bodies) == (2 if reason == "stop" else 3)
    await eventually(cluster.is_idle)
    assert cluster.leases.released == ["leasep01"] and not cluster.leases.tracked


@pytest.mark.parametrize("when", ["prefilling", "held", "decoding"])
async def test_an_abort_ends_all_choices(cluster: Cluster, when: str) -> None:
    p, d = await trio(cluster, "prefill", "decode", seats=2 if when == "decoding" else 1)
    (p if when == "prefilling" else d).script += [Hang(), Hang()]
    task = asyncio.create_task(cluster.post(body_for(CHAT, n=2, stream=when == "decoding"), CHAT))
    await (eventually(lambda: len(d.bodies) == 2) if when == "decoding" else cluster.until_state(when))
    (listed,) = (await cluster.client.get("/admin/requests")).json()["requests"]
    answer = await cluster.client.post(f"/admin/requests/{listed['id']}/abort")
    assert answer.json()["aborted"] == [listed["id"]]
    response = await task
    assert "aborted by an administrator" in response.text
    await eventually(cluster.is_idle)
    (ended,) = cluster.ended()
    assert (ended.id, ended.outcome, ended.ended_in) == (listed["id"], "aborted", listed["state"])


async def test_a_client_that_leaves_ends_all_choices(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    d.script += [Hang(), Hang(), Hang()]
    writer = await cluster.open(body_for(CHAT, n=3))
    await eventually(lambda: len(d.bodies) == 3)
    writer.close()
    await eventually(cluster.is_idle)
    await eventually(lambda: d.num_disconnects == 3)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_of_one_choice_is_the_error_of_all(cluster: Cluster, stream: bool) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    d.script += [Hang(), Refuse(400, {"error": {"message": "no", "type": "invalid_request_error", "code": "bad"}})]
    response = await cluster.post(body_for(TEXT, n=2, stream=stream), TEXT)
    if stream:
        assert events(response.text)[-1]["error"]["message"] == "no"
        assert sum("error" in event for event in events(response.text)) == 1
    else:
        assert (response.status_code, response.json()["error"]["message"]) == (400, "no")
    await eventually(cluster.is_idle)


@pytest.mark.interpreted
async def test_a_bug_beside_the_error_of_another_choice_is_logged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await trio(cluster, "prefill", "decode")
    meet, failures = asyncio.Barrier(2), [UnavailableError("no"), KeyError("a bug")]

    async def run(_runner: Runner, _request: Exchange) -> None:
        await meet.wait()
        raise failures.pop()

    monkeypatch.setattr(Runner, "run", run)
    response = await cluster.post(body_for(TEXT, n=2), TEXT)
    assert (response.status_code, response.json()["error"]["message"]) == (503, "no")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]


async def test_an_error_that_a_worker_put_into_its_stream_comes_once(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    d.error_code = 400
    d.names_tokens = False
    act = StreamThen(1, "error")
    d.script += [act, Hang()]
    task = asyncio.create_task(cluster.post(body_for(TEXT, n=2, stream=True), TEXT))
    await eventually(lambda: len(d.bodies) == 2)
    act.go.set()
    assert sum("error" in event for event in events((await task).text)) == 1
    await eventually(cluster.is_idle)
    assert cluster.ended()[0].outcome == "failed"


async def test_a_request_for_several_answers_is_one_request_to_people(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode", seats=1)
    hang = d.hangs()
    task = asyncio.create_task(cluster.post(body_for(CHAT, n=3, stream=True), CHAT))
    await cluster.until_state("held", 2)
    (listed,) = (await cluster.client.get("/admin/requests")).json()["requests"]
    assert (listed["state"], listed["lease_id"]) == ("held", "leasep01")
    assert (await cluster.client.get("/load")).json() == {"server_load": 3}
    hang.release.set()
    response = await task
    assert response.headers["x-request-id"] == listed["id"]
    (ended,) = cluster.ended()
    assert (ended.id, ended.outcome) == (listed["id"], "done")
    assert (ended.num_tokens or 0) >= 3 * NUM_TOKENS
    assert cluster.metrics.outcomes["done", ""] == 1
    assert cluster.active.num_choices == 0
    assert cluster.active.count() == dict.fromkeys(cluster.active.count(), 0)


@pytest.mark.settings(max_queue_length=2, max_choices=5, client_priority="trusted")
async def test_each_answer_waits_for_itself(cluster: Cluster) -> None:
    """A request may wait alone, however many answers it asks for; one that is refused displaces nobody."""
    p, _ = await trio(cluster, "prefill", "decode", limit=10)
    for worker in cluster.pool:
        worker.usage.full_at = 2
    hang = Hang()
    p.script += [hang, hang]
    first = asyncio.create_task(cluster.post(body_for(TEXT, prompt=["a", "b", "c", "d", "e"]), TEXT))
    await eventually(lambda: len(cluster.queues.prefill) == 3)
    assert (await cluster.post(body_for(TEXT, n=2), TEXT)).status_code == 429
    assert (await cluster.post(body_for(TEXT, n=9, priority=-5), TEXT)).status_code == 400
    assert not cluster.metrics.num_displaced
    hang.release.set()
    assert len((await first).json()["choices"]) == 5
    await eventually(cluster.is_idle)


async def test_answers_of_one_request_take_half_of_the_places_and_queue_for_each(cluster: Cluster) -> None:
    """Others come between them, although it asked for more answers than there are places."""
    p, d = await trio(cluster, "prefill", "decode", limit=4)
    for worker in cluster.pool:
        worker.usage.full_at = 4
    hangs = [Hang() for _ in range(12)]
    p.script += hangs
    many = asyncio.create_task(cluster.post(body_for(TEXT, prompt=list("abcdefgh"), user="many"), TEXT))
    await eventually(lambda: len(p.bodies) == 2)
    others = [asyncio.create_task(cluster.post(chat(user=f"other {number}"))) for number in range(4)]
    await eventually(lambda: len(cluster.queues.prefill) == 2 and len(p.bodies) == 4)
    assert [body["user"] for body in p.bodies] == ["many", "many", "other 0", "other 1"]
    for hang in hangs:
        hang.release.set()
    assert [(await one).status_code for one in (many, *others)] == [200] * 5
    assert len((await many).json()["choices"]) == 8
    waited = [body["user"] for body in p.bodies[4:]]
    assert waited[:2] == ["other 2", "other 3"], "they came before the third of many, which then had its turn"
    assert len(d.bodies) == 12
    await eventually(cluster.is_idle)


@pytest.mark.parametrize("more", [{"n": 12}, {"n": 12, "max_tokens": 1}], ids=["one reader", "one token"])
async def test_answers_that_p_is_asked_for_one_by_one_take_half_of_its_places(
    cluster: Cluster, more: dict[str, Any]
) -> None:
    """Blocks of other engines than Baton's have one reader, and an answer of one token is P's alone."""
    ours = "max_tokens" in more
    p, _ = await trio(cluster, "prefill", "decode", limit=12, ours=ours)
    (worker,) = [one for one in cluster.pool if one.role == "prefill"]
    worker.usage.limit = 4
    hangs = [Hang() for _ in range(13)]
    p.script += hangs
    if not ours:  # until P has answered the first one, the others may have something to share
        hangs[0].release.set()
    many = asyncio.create_task(cluster.post(body_for(TEXT, user="many", **more), TEXT))
    num_asked = 2 if ours else 3
    await eventually(lambda: len(p.bodies) == num_asked)
    other = asyncio.create_task(cluster.post(chat(user="other")))
    await eventually(lambda: len(p.bodies) == num_asked + 1)
    assert p.bodies[-1]["user"] == "other", "those of one request leave it a place"
    for hang in hangs:
        hang.release.set()
    assert (await other).status_code == 200
    assert len((await many).json()["choices"]) == len(p.bodies) - 1 == 12
    await eventually(cluster.is_idle)


@pytest.mark.settings(max_choices=4, max_requests=5)
class TestBounds:
    @pytest.mark.parametrize(
        ("asked", "param"), [({"n": 5}, "n"), ({"prompt": ["a"] * 5}, "prompt"), ({"best_of": 5}, "best_of")]
    )
    async def test_too_many_answers_are_refused(self, cluster: Cluster, asked: dict[str, Any], param: str) -> None:
        await trio(cluster)
        response = await cluster.post(body_for(TEXT, **asked), TEXT)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert response.json()["error"]["code"] == "too_many_choices"
        cluster.check_idle()

    async def test_each_answer_counts_as_a_request(self, cluster: Cluster) -> None:
        _, d = await trio(cluster, "prefill", "decode")
        d.script += [Hang() for _ in range(4)]
        writer = await cluster.open(body_for(TEXT, n=4), TEXT)
        await eventually(lambda: len(d.bodies) == 4)
        assert (await cluster.post(body_for(TEXT, n=2), TEXT)).status_code == 429
        d.script.clear()
        assert (await cluster.post(body_for(TEXT), TEXT)).status_code == 200
        writer.close()
        await eventually(cluster.is_idle)


@pytest.mark.settings(max_choices=4, max_requests=3)
async def test_a_request_that_can_never_run_is_not_asked_to_come_again(cluster: Cluster) -> None:
    await trio(cluster)
    response = await cluster.post(body_for(TEXT, n=4), TEXT)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "too_many_choices")
    assert "max_requests" in response.json()["error"]["message"]
    assert (await cluster.post(body_for(TEXT, n=3), TEXT)).status_code == 200


async def test_states_of_a_whole_are_those_of_its_slowest_choice(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode", seats=1)
    hang = d.hangs()
    task = asyncio.create_task(cluster.post(body_for(CHAT, n=2), CHAT))
    await cluster.until_state("held")
    (request,) = cluster.active
    assert request.state is State.HELD and "WholeRequest" in repr(request)
    hang.release.set()
    await task
    assert request.state is State.DONE and not request.stop(Exception())  # type: ignore[arg-type]
