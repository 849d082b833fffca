"""The router's settings: what is refused, and what becomes of addresses."""

from __future__ import annotations

from typing import Any

import pytest

from router.settings import RouterSettings


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
