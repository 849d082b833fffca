"""Which headers open a port."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from baton_serve.core.net.access.keys import Keys

KEYS = Keys([SecretStr("first"), None, SecretStr("second")])


@pytest.mark.parametrize("header", [b"Bearer first", b"bearer second", b"Bearer  first "])
def test_any_of_the_keys_is_taken(header: bytes) -> None:
    assert KEYS.match_bearer(header)


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer ", b"first", b"Basic first", b"Bearer third", b"\xe9"]
)
def test_a_header_without_one_of_the_keys_is_refused(header: bytes | None) -> None:
    assert not KEYS.match_bearer(header)


def test_every_request_passes_where_no_key_is_set() -> None:
    assert Keys([]).match_bearer(None)
    assert Keys([None]).match(None)
