"""The parameters of a hand-off, as P is asked for them and as D is given them."""

from __future__ import annotations

ASK = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
GOOD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "ee",
    "remote_request_id": "rr",
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "remote_block_ids": [[1]],
    "remote_num_tokens": 3,
    "lease_id": "ll",
    "promise": 4,
    "first_token": 5,
    "prompt_token_ids": [5, 6, 7],
}
