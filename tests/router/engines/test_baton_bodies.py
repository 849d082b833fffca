"""The bodies that P and D are sent."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.engines.baton.bodies import decode_body, prefill_body
from baton_serve.router.request.bodies import ClientBody


@given(
    st.dictionaries(
        st.sampled_from(["model", "stream", "max_tokens", "temperature", "stop", "seed", "min_tokens", "n", "user"]),
        st.none() | st.integers(0, 9) | st.text(max_size=5),
    )
)
def test_legs_are_json_and_keep_what_the_client_asked(body: dict[str, Any]) -> None:
    bodies = ClientBody(body)
    raw = b'{"remote_block_ids":[[1,2]],"x":18446744073709551615}'
    to_d, alone, to_p = (
        json.loads(b"".join(decode_body(bodies, (raw,)))),
        json.loads(b"".join(decode_body(bodies, None))),
        json.loads(b"".join(prefill_body(bodies, hand_off=True))),
    )
    wanted = {name: value for name, value in body.items() if value is not None and name != "n"}
    assert to_d.pop("kv_transfer_params")["x"] == 2**64 - 1
    assert to_d == alone
    assert {name: value for name, value in to_d.items() if name in wanted} == wanted
    assert to_p["stream"] is False
    assert to_p.get("max_tokens") == wanted.get("max_tokens"), "P knows the model's own limit"
    assert to_p.get("seed") == to_d.get("seed")


def test_parameters_that_change_no_token_are_not_sent_on() -> None:
    hints = {"metadata": {"a": "b"}, "service_tier": "flex", "verbosity": "low", "prompt_cache_key": "k"}
    bodies = ClientBody({"model": "m", "prompt": "x", "store": False, **hints})
    for leg in (decode_body(bodies, None), prefill_body(bodies, hand_off=True)):
        assert json.loads(b"".join(leg)).keys() <= {
            "model",
            "prompt",
            "stream",
            "seed",
            "max_tokens",
            "kv_transfer_params",
        }
