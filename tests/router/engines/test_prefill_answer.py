"""What the router makes of P's answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.openai.passed_on import PassedOnCompletion
from baton_serve.router.engines import answer_body
from baton_serve.router.engines.answer_body import decoded_answer
from baton_serve.router.engines.baton.answer import BatonAnswer, PlainAnswer
from baton_serve.router.request.client_request import CHAT_PATH, COMPLETIONS_PATH, ClientRequest

#: Texts, some of which look like the place where the parameters begin.
TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(['"kv_transfer_params":', "kv_transfer_params", "\\", "}}"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(0, 9), TEXTS),
    lambda some: st.one_of(st.lists(some, max_size=3), st.dictionaries(TEXTS, some, max_size=3)),
    max_leaves=5,
)
PARAMS = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"remote_block_ids": st.lists(st.integers(0, 9))}, optional={"first_token": VALUES, "x": VALUES}
    ),
)


def answer(*, ours: bool = True, **kwargs: Any) -> PlainAnswer:
    body = {"id": "cmpl-x", "model": "m", "choices": [{"text": "a", "finish_reason": "length"}], **kwargs}
    return (BatonAnswer if ours else PlainAnswer)(json.dumps(body).encode(), hand_off=True)


def ask(*, chat: bool = False, max_tokens: int = 9) -> ClientRequest:
    fields = PassedOnCompletion(model="m", stream=True, max_tokens=max_tokens)
    return ClientRequest(fields, CHAT_PATH if chat else COMPLETIONS_PATH)


def test_the_bytes_for_d_are_those_that_came() -> None:
    raw = b'{"remote_block_ids": [[1,  2]], "lease_id":"l", "remote_engine_id":"e", "x":{"d":[18446744073709551615]}}'
    made = BatonAnswer(b'{"id":"x","model":"m","choices":[{}],"kv_transfer_params":%s}' % raw, hand_off=True)
    assert made.kv_transfer_params == raw
    assert made.summary.lease_id == "l"
    assert not made.has_first_token


@given(st.permutations(["id", "choices", "usage", "extra", "kv_transfer_params"]), PARAMS, VALUES, TEXTS, st.booleans())
def test_a_long_answer_is_read_as_a_short_one(
    order: list[str], params: object, other: object, text: str, escaped: bool
) -> None:
    """Wherever the parameters are in it, and whatever else looks like them."""
    choices = [{"text": text, "logprobs": {"top_logprobs": [{text: -1}]}}]
    fields = {"id": text, "choices": choices, "usage": other, "extra": {text: other}, "kv_transfer_params": params}
    body = json.dumps({"model": "m", **{name: fields[name] for name in order}}, separators=(",", ":")).encode()
    if escaped:  # another name for the decoder
        body = body.replace(b'"kv_transfer_params":', b'"\\"kv_transfer_params":')
    assert decoded(body, long=True) == decoded(body, long=False)


def decoded(body: bytes, *, long: bool) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_body, "_LONG_BYTES", 0 if long else 1 << 30)
        try:
            made, params, summary = decoded_answer(body)
        except ValueError:
            return None
    return made.id, made.choices[0].text, bytes(made.usage), params, summary


def test_the_list_of_blocks_is_skipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    params = b'{"remote_block_ids":[%b1],"first_token":3}' % (b"1," * 2000)
    body = b'{"id":"x","model":"m","choices":[{}],"kv_transfer_params":%b}' % params
    num_bytes = []
    decode = answer_body._decode

    def counted(decoder: Any, data: bytes) -> Any:
        num_bytes.append(len(data))
        return decode(decoder, data)

    monkeypatch.setattr(answer_body, "_decode", counted)
    _, found, summary = decoded_answer(body)
    assert (found, summary.first_token) == (params, 3)
    assert sum(num_bytes) < len(body) + 10


@pytest.mark.parametrize("ids", [{"lease_id": "l"}, {"lease_id": "a:b", "remote_engine_id": "e"}])
def test_a_lease_that_cannot_be_a_key_is_not_understood(ids: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not an engine or lease id"):
        answer(kv_transfer_params=ids)


def test_an_answer_is_whole_if_it_leaves_nothing_to_a_d() -> None:
    continued = answer(kv_transfer_params={"first_token": 1, "remote_num_tokens": 99})
    assert not continued.is_whole(ask())
    assert continued.is_whole(ask(max_tokens=1))
    assert not answer(kv_transfer_params={}).is_whole(ask(max_tokens=1)), "no first token of ours: D samples"
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
def test_a_malformed_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        BatonAnswer(body, hand_off=True)


def test_the_reason_for_the_end_is_passed_on_if_p_says_one() -> None:
    ended = answer(choices=[{"text": "", "finish_reason": "stop", "stop_reason": 7}])
    assert json.loads(ended.last_events(ask()).split(b"\n")[0][6:])["choices"][0]["stop_reason"] == 7
    assert b"stop_reason" not in answer(choices=[{"text": "", "finish_reason": "stop"}]).last_events(ask())


def test_the_parts_of_a_message_are_passed_on() -> None:
    calls = [{"index": 0, "function": {"arguments": '{"a'}}]
    message = {"role": "assistant", "content": "", "reasoning_content": "hm", "reasoning": "hm", "tool_calls": calls}
    made = answer(choices=[{"message": message, "finish_reason": "length"}])
    delta = json.loads(made.first_events(ask(chat=True), begun=True)[6:])["choices"][0]["delta"]
    assert made.shows_text and delta == {"reasoning_content": "hm", "reasoning": "hm", "tool_calls": calls}


def test_an_answer_that_ends_with_calls_is_whole() -> None:
    ended = answer(choices=[{"message": {"content": "x"}, "finish_reason": "tool_calls"}], kv_transfer_params=None)
    assert ended.is_whole(ask(chat=True)) and answer(
        choices=[{"message": {}, "finish_reason": "tool_calls"}], ours=False
    ).is_whole(ask(chat=True))
