"""A worker proves that it knows the internal token to whoever asks, and says nothing else by that."""

from __future__ import annotations

import httpx
import pytest

from baton_serve.core.protocol.hello import HELLO_PATH, new_nonce, worker_proof
from baton_serve.core.protocol.token_keys import announcement_key, hello_key
from baton_serve.core.protocol.worker import Role, WorkerRecord
from baton_serve.workers.app import create_internal_app
from baton_serve.workers.server.pages.internal import hello_pages

TOKEN = "sesame"
RECORD = WorkerRecord(
    worker_id="w", engine_id="e", role=Role.BOTH, model="m", url="http://h:1", internal_url="http://h:2",
    compatibility_hash="c", max_model_len=1, block_size=1, num_blocks=1, max_num_seqs=1,
)  # fmt: skip


async def hello(nonce: str) -> httpx.Response:
    app = create_internal_app(hello_pages(RECORD, TOKEN))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        return await client.get(HELLO_PATH + nonce)


async def test_the_proof_is_of_this_nonce_and_of_what_is_announced() -> None:
    nonce = new_nonce()
    answer = await hello(nonce)
    assert (answer.status_code, answer.text) == (200, worker_proof(hello_key(TOKEN), RECORD, nonce))
    assert answer.text != (await hello(new_nonce())).text
    assert TOKEN not in answer.text


@pytest.mark.parametrize("nonce", ["", "x" * 32, "0" * 31, "0" * 33, "A" * 32, "0" * 32 + "%0A", "0" * 10_000])
async def test_only_a_nonce_is_answered(nonce: str) -> None:
    assert (await hello(nonce)).status_code in {400, 404, 422}


def test_keys_for_one_use_are_of_no_use_for_another() -> None:
    assert len({hello_key(TOKEN), announcement_key(TOKEN), hello_key("other"), TOKEN.encode()}) == 4
