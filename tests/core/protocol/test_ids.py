"""Ids as people read and type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.ids import IdAmbiguous, IdTooShort, IdUnknown, request_of, resolve, short, shorten
from baton_serve.core.protocol.request_ids import new_request_id, new_router_id, owner_of

_IDS = st.text("ab", min_size=4, max_size=14)


def test_requests_of_one_router_differ_in_what_is_shown() -> None:
    router_id = new_router_id()
    ids = [new_request_id(router_id) for _ in range(200)]
    assert len({short(each) for each in ids}) == len(ids)
    assert all(len(short(each)) == 8 and each.startswith(short(each)) and owner_of(each) == router_id for each in ids)


@given(st.sets(_IDS | _IDS.map("x://{}".format) | _IDS.map("y://{}".format), min_size=1))
def test_the_part_of_an_id_that_is_shown_is_understood(ids: set[str]) -> None:
    for full, shown in shorten(ids).items():
        assert resolve(shown, ids, "request") == full


def test_a_url_is_told_by_its_address() -> None:
    urls = ["http://127.0.0.1:80", "http://127.0.0.1:8000", "https://d.example.org/base"]
    assert (
        sorted(shorten(urls).values())
        == sorted(map(short, urls))
        == ["127.0.0.1:80", "127.0.0.1:8000", "d.example.org/base"]
    )
    assert resolve("127.0.0.1:80", urls, "worker") == urls[0]
    assert resolve("https://d.example.org/base", urls, "worker") == urls[2]


@pytest.mark.parametrize("given", ["http", "http://10.0.0.5", "http://10.0.0.5:80", "10.0.0.5", "10.0.0.5:800", "10.0"])
def test_the_beginning_of_an_address_means_nobody(given: str) -> None:
    with pytest.raises(IdUnknown):
        resolve(given, ["http://10.0.0.5:8000", "abcd0000"], "worker")


def test_two_workers_at_one_address_are_told_apart_by_the_scheme() -> None:
    urls = ["http://10.0.0.5:8000", "https://10.0.0.5:8000"]
    with pytest.raises(IdAmbiguous, match=r"http://10\.0\.0\.5:8000, https://10\.0\.0\.5:8000"):
        resolve("10.0.0.5:8000", urls, "worker")
    assert [resolve(url, urls, "worker") for url in urls] == urls


def test_an_id_that_is_too_short_unknown_or_ambiguous_is_refused() -> None:
    many = [f"abcd{number:04}ffff" for number in range(20)]
    with pytest.raises(IdTooShort, match="'abc' is too short for the id of a worker: give at least 4"):
        resolve("abc", ["abcd"], "worker")
    with pytest.raises(IdTooShort):
        resolve("", ["only"], "worker")
    with pytest.raises(IdTooShort) as refused:
        resolve("\x9b/", ["only"], "worker")
    assert str(refused.value).isprintable()
    with pytest.raises(IdUnknown, match="no worker has an id that begins with 'bcde'"):
        resolve("bcde", ["abcde"], "worker")
    with pytest.raises(
        IdAmbiguous, match=r"beginning of 20 workers' ids: abcd0000, .*, abcd0007 and 12 more; give more"
    ):
        resolve("abcd", many, "worker")
    names = dict.fromkeys(["abcd0000", "abcd1111"], "decode-1") | {"ffff0000": "decode-2"}
    with pytest.raises(IdAmbiguous, match="2 workers are named 'decode-1': abcd0000, abcd1111; give an id"):
        resolve("decode-1", names, "worker", names)
    assert resolve("decode-2", names, "worker", names) == "ffff0000"
    with pytest.raises(IdUnknown) as unknown:
        resolve("x" * 10**6, many, "worker")
    assert len(str(unknown.value)) < 300
    assert resolve("abc", ["abc", "abcd"], "worker") == "abc", "a whole id of any length is one"


@pytest.mark.parametrize("called", ["chatcmpl-ab12cd34", "cmpl-ab12cd34", "resp_ab12cd34", "msg_ab12cd34", "ab12cd34"])
def test_a_request_may_be_called_as_its_answer_is(called: str) -> None:
    assert request_of(called) == "ab12cd34"
