"""The router's settings: what is refused, and what becomes of addresses."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.router.settings import RouterSettings


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"host": "0.0.0.0"}, "api_keys"),
        ({"redis_url": ""}, "redis_url"),
        ({"lease_renew_interval_ms": 4000}, "lease_renew_interval_ms"),
        ({"prefill": ["ftp://x"]}, "host:port"),
        ({"prefill": ["vllm+http://x?chanel=1"]}, "chanel is no option"),
        ({"prefill": ["vllm+http://x?max_num_seqs=1"], "decode": ["vllm+http://x"]}, "twice"),
        ({"prefil": ["x:1"]}, "prefil"),
        ({"keep_alive_s": 0.5}, "keep_alive_s"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RouterSettings.model_validate(given)


def test_worker_addresses_become_urls() -> None:
    made = RouterSettings(prefill=("h:1",), decode=("https://d/base/",))
    assert (made.prefill, made.decode) == (("http://h:1",), ("https://d/base",))
    assert made.serves_admin
    assert not RouterSettings(host="0.0.0.0", allow_anonymous=True).serves_admin


VLLM = {"prefill": ["vllm+http://p:1"], "decode": ["vllm+http://d:1?side_channel=7"]}


def test_vllm_servers_alone_need_no_redis() -> None:
    made = RouterSettings.model_validate(VLLM)
    assert made.redis_url == ""
    assert made.decode == ("vllm+http://d:1?side_channel=7",)
    assert RouterSettings(prefill=("vllm+http://b",), decode=("vllm+http://b",)).redis_url == ""


@pytest.mark.parametrize(
    "more",
    [
        {"redis_url": "redis://r"},
        {"redis_password": "sesame"},
        {"decode": []},
        {"decode": ["vllm+http://d:1", "http://o:1"]},
    ],
)
def test_redis_is_asked_for_where_somebody_else_may_need_it(more: dict[str, Any]) -> None:
    assert RouterSettings.model_validate({**VLLM, **more}).redis_url.startswith("redis://")


def test_several_processes_need_redis_with_vllm_too() -> None:
    with pytest.raises(ValueError, match="processes"):
        RouterSettings.model_validate({**VLLM, "processes": 2})
