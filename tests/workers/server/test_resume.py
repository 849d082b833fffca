"""An answer that broke off and goes on elsewhere is the answer that it would have been, wherever it broke."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from baton_serve.workers.server.answers.turns import NUM_TOGETHER
from tests.kits.repetition import some_now
from tests.kits.worker.front import (
    EOS,
    MAX_MODEL_LEN,
    TEXT,
    chat,
    completion,
    fast_tokenizer,
    front,
    text_of,
    tokens_of,
)
from tests.kits.worker.hand_off import GOOD
from tests.kits.worker.streams import Answer, ask, go_on_by_hand_off, go_on_plain, parts

#: The script begins with a character of several tokens and has some in its middle.
SAID = "\u4e2d" + TEXT + " and \U0001f3c3 runs"
SCRIPT = [*tokens_of(SAID), EOS]
VOCAB = fast_tokenizer().get_vocab_size()
WISHES: list[dict[str, Any]] = [
    {},
    {"stop": ["other one has it. \u4e2d\u6587 \u20ac\u20ac?", "nothing"]},
    {"stop": " baton until the"},
    {"stop": ["\u4e2d\u6587"], "min_tokens": 4},
    {"stop": "runner", "min_tokens": 8},
    {"max_tokens": 9},
    {"ignore_eos": True, "max_tokens": len(SCRIPT)},
    {"stop": ["other one", "nothing"], "include_stop_str_in_output": True},
    {"stop_token_ids": [SCRIPT[-4], 5], "include_stop_str_in_output": True, "logprobs": 1},
    {"stop_token_ids": [EOS, SCRIPT[-4]]},
    {"return_token_ids": True},
    {"return_token_ids": True, "stop": "has it. \u4e2d!", "logprobs": 1, "return_tokens_as_token_ids": True},
    {"skip_special_tokens": False},
    {"logprobs": 2, "stop": "has it. \u4e2d!"},
    {"logprobs": 2, "stop": SAID[3:-5] + "?"},
]


def bodies() -> list[Any]:
    """All wishes of completions, then all of chats."""
    completions, chats = [], []
    for wish in WISHES:
        in_chat = {**wish, "logprobs": True, "top_logprobs": 1} if "logprobs" in wish else wish
        given = {"max_tokens": 100, **wish}
        completions.append(pytest.param("/v1/completions", completion(seed=1, **given), id=f"completions {wish}"))
        chats.append(
            pytest.param("/v1/chat/completions", chat(seed=1, **{"max_tokens": 100, **in_chat}), id=f"chat {wish}")
        )
    return completions + chats


@pytest.mark.parametrize("go_on", [go_on_plain, go_on_by_hand_off])
@pytest.mark.parametrize(("path", "body"), some_now(bodies(), 2))
async def test_the_answer_is_the_same_wherever_it_broke_off(path: str, body: dict[str, Any], go_on: Any) -> None:
    async with front(SCRIPT) as worker:
        events = await ask(worker, path, body)
        whole = Answer().see(*events)
        assert whole.finish_reason is not None and whole.usage is not None
        for had in parts(events):
            num_given = len(had.token_ids)
            got = await go_on(worker, path, body, deepcopy(had))
            assert comparable(got) == comparable(whole), num_given
        # Asked again, a request has no other lease than its last. A stop string in P's token drops a lease ungranted.
        assert {*worker.engine.held, *worker.leases.dropped} >= set(worker.leases.granted)
        assert len(worker.engine.leases) <= 1


def comparable(answer: Answer) -> Answer:
    """Without what is not a part of the answer: which token came from where, and how much of it was cached."""
    usage = {**(answer.usage or {}), "prompt_tokens_details": None}
    return Answer(
        answer.text,
        answer.logprobs,
        answer.roles,
        answer.finish_reason,
        answer.stop_reason,
        usage,
        answer.same,
        shown_ids=answer.shown_ids,
        prompt_ids=answer.prompt_ids,
    )


async def test_every_number_of_tokens_will_do() -> None:
    """Also between two events: what is held back there comes with what comes next."""
    async with front(SCRIPT) as worker:
        body = completion(max_tokens=100, stop=["one has it. \u4e2d\u6587 \u20ac\u20ac?"])
        events = await ask(worker, "/v1/completions", body)
        whole, told = Answer().see(*events), [len(part.token_ids) for part in parts(events)]
        for count in range(len(SCRIPT)):
            shown = Answer().see(*events[: sum(one <= count for one in told)])
            shown.token_ids = SCRIPT[:count]
            shown.same = whole.same
            got = await go_on_plain(worker, "/v1/completions", body, shown)
            assert comparable(got) == comparable(whole), count


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_answer_may_break_off_again_and_again(path: str) -> None:
    """Each D shows a few events and dies; the ids that the router has add up."""
    async with front(SCRIPT) as worker:
        body = {**(completion() if "chat" not in path else chat()), "max_tokens": 60}
        whole = Answer().see(*await ask(worker, path, body))
        had = Answer().see_whole(await ask(worker, path, body, do_remote_decode=True))
        had.roles = whole.roles  # the router's own
        for _ in range(5):
            (_, created, _), *others = had.same
            assert not others
            first = await ask(
                worker, path, body, do_remote_decode=True, resume={"token_ids": had.token_ids, "created": created}
            )
            had.see_whole(first)
            events = await ask(worker, path, body, **first["kv_transfer_params"])
            had.see(*events[:4])
            assert had.token_ids == SCRIPT[: len(had.token_ids)]
        whole.same = had.same  # the first answer was made in another second, perhaps
        assert comparable(await go_on_plain(worker, path, body, had)) == comparable(whole)


async def test_a_whole_answer_shows_nothing_of_what_was_given() -> None:
    async with front(SCRIPT) as worker:
        body = completion(max_tokens=100, logprobs=0, return_token_ids=True, stream=False)
        alone = (await worker.http.post("/v1/completions", json=body)).json()
        resume = {"token_ids": SCRIPT[:9], "created": 77}
        ask_plain = {**body, "kv_transfer_params": {"resume": resume}}
        plain = (await worker.http.post("/v1/completions", json=ask_plain)).json()
        ask_p = {**body, "max_tokens": 1, "kv_transfer_params": {"resume": resume, "do_remote_decode": True}}
        first = (await worker.http.post("/v1/completions", json=ask_p)).json()
        ask_d = {**body, "kv_transfer_params": first["kv_transfer_params"]}
        second = (await worker.http.post("/v1/completions", json=ask_d)).json()
        metrics = (await worker.http.get("/metrics")).text
    rest = text_of(SCRIPT[9:])
    for answer in (plain, second):
        (choice,) = answer["choices"]
        assert (choice["text"], choice["token_ids"]) == (rest, SCRIPT[9:])
        assert choice["logprobs"]["text_offset"] == alone["choices"][0]["logprobs"]["text_offset"][9:]
        assert answer["created"] == 77
        assert answer["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"] == len(SCRIPT)
    sampled = len(SCRIPT) + 2 * len(SCRIPT[9:]) + 1
    assert f"baton_worker_generation_tokens_total {float(sampled)}" in metrics


@pytest.mark.parametrize("count", [NUM_TOGETHER - 1, NUM_TOGETHER, NUM_TOGETHER + 1, 2 * NUM_TOGETHER + 5])
async def test_much_that_was_seen_is_skipped_in_parts(count: int) -> None:
    script = (SCRIPT[:-1] * 4)[: 2 * NUM_TOGETHER + 20]
    async with front(script) as worker:
        body = completion([5], max_tokens=len(script), logprobs=0, return_token_ids=True)
        alone = (await worker.http.post("/v1/completions", json=body)).json()
        body["kv_transfer_params"] = given(script[:count])
        answer = (await worker.http.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["token_ids"] == script[count:]
    offsets = [one["choices"][0]["logprobs"]["text_offset"] for one in (answer, alone)]
    assert offsets[0] == offsets[1][count:]
    assert alone["choices"][0]["text"].endswith(answer["choices"][0]["text"])
    assert answer["usage"] == alone["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}


async def test_nothing_seen_yet_is_only_a_stream_without_its_beginning() -> None:
    async with front(SCRIPT) as worker:
        events = await ask(worker, "/v1/chat/completions", chat(), resume={"token_ids": []})
        again = Answer().see(*events)
        assert (again.roles, again.text) == (0, SAID)


def given(token_ids: Any, **more: Any) -> dict[str, Any]:
    return {"resume": {"token_ids": token_ids, **more}}


#: What is given, what else is asked, what is wrong with it.
ANY_LEG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"resume": 5}, {}, "resume"),
    ({"resume": {}}, {}, "token_ids"),
    (given("5"), {}, "token_ids"),
    (given(["5"]), {}, "token_ids"),
    (given([5.0]), {}, "token_ids"),
    (given([-1]), {}, "resume.token_ids are not token ids"),
    (given([2**31]), {}, "resume.token_ids are not token ids"),
    (given([VOCAB]), {}, f"resume.token_ids must be below {VOCAB}"),
    (given([5], created=-1), {}, "resume.created"),
    (given([5], created="now"), {}, "created"),
    (given([5, EOS, 6]), {}, "the stop token 1 at 1: that request was over"),
    (given(SCRIPT[:9]), {"stop": text_of(SCRIPT[4:7])}, "contain a stop string: that request was over"),
    (given([5] * (MAX_MODEL_LEN - 1)), {}, f"and {MAX_MODEL_LEN} fit"),
]
#: P is not told how many tokens are wanted, and is not D.
OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (given(SCRIPT[:9]), {"max_tokens": 9}, "are 9 of 9 tokens at most: that request was over"),
    ({"do_remote_prefill": True, **given([5])}, {}, "a D is not asked to resume"),
]


@pytest.mark.parametrize(
    ("params", "wish", "complaint"),
    [*ANY_LEG, *OTHERS, *(({"do_remote_decode": True, **one}, wish, what) for one, wish, what in ANY_LEG)],
)
async def test_what_cannot_go_on_is_refused_by_name(
    params: dict[str, Any], wish: dict[str, Any], complaint: str
) -> None:
    async with front(SCRIPT) as worker:
        response = await worker.http.post("/v1/completions", json=completion(kv_transfer_params=params, **wish))
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "kv_params_invalid", "kv_transfer_params")
        assert complaint in error["message"]
        assert worker.engine.requests == []


async def test_a_stop_token_goes_by_with_ignore_eos() -> None:
    async with front([5, EOS, 6, 7]) as worker:
        body = completion(max_tokens=4, ignore_eos=True)
        whole = Answer().see(*await ask(worker, "/v1/completions", body))
        events = await ask(worker, "/v1/completions", body, resume={"token_ids": [5, EOS]})
        assert text_of([5]) + Answer().see(*events).text == whole.text


D = {**GOOD, "remote_num_tokens": 5, "first_token": SCRIPT[5], "output_token_ids": SCRIPT[3:5]}


@pytest.mark.parametrize(
    ("change", "wish"),
    [
        ({"output_token_ids": SCRIPT[:3]}, {}),
        ({"output_token_ids": [5, -1]}, {}),
        ({"output_token_ids": [5, VOCAB]}, {}),
        ({"output_token_ids": [5, EOS]}, {}),
        ({"output_token_ids": [5, "6"]}, {}),
        ({}, {"stop": text_of(SCRIPT[4:5])}),
    ],
)
async def test_what_d_goes_on_after_is_checked(change: dict[str, Any], wish: dict[str, Any]) -> None:
    async with front(SCRIPT) as worker:
        fine = await worker.http.post("/v1/completions", json=completion(kv_transfer_params=D))
        assert fine.status_code == 200, fine.text
        body = completion(kv_transfer_params={**D, **change}, **wish)
        response = await worker.http.post("/v1/completions", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "kv_params_invalid", "kv_transfer_params")


@pytest.mark.parametrize(("max_tokens", "status"), [(3, 400), (4, 200)])
async def test_d_needs_a_token_to_decode(max_tokens: int, status: int) -> None:
    async with front(SCRIPT) as worker:
        body = completion(kv_transfer_params=D, max_tokens=max_tokens)
        response = await worker.http.post("/v1/completions", json=body)
        assert response.status_code == status
