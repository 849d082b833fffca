"""``GET /internal/hello/{nonce}``: this worker proves that it knows the internal token (``core/protocol/hello.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Response

from baton_serve.core.protocol.hello import HELLO_PATH, NONCE, worker_proof
from baton_serve.core.protocol.token_keys import hello_key

if TYPE_CHECKING:
    from baton_serve.core.protocol.hello import WorkerIdentity


def hello_pages(worker: WorkerIdentity, token: str) -> APIRouter:
    """A router with the page. A caller needs no token for it: the caller sends its token only after this proof."""
    router = APIRouter()
    key = hello_key(token)

    @router.get(HELLO_PATH + "{nonce}", response_class=Response)
    async def hello(nonce: Annotated[str, Path(pattern=f"^{NONCE.pattern}$")]) -> Response:
        return Response(worker_proof(key, worker, nonce), media_type="text/plain")

    return router
