"""The router does what its own OpenAPI says: requests made from it, by schemathesis, and answers compared with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import given
from schemathesis import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.kits.fuzz.profile import check_error, fuzz, tried
from tests.kits.fuzz.served import Served

if TYPE_CHECKING:
    import httpx

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
#: Streams that do not end, and pages for people.
LEFT_OUT = ("/dashboard", "/admin/live", "/admin/dashboard")


async def call(served: Served, case: Case) -> httpx.Response:
    asked: dict[str, Any] = case.as_transport_kwargs(base_url=served.cluster.url)
    known = {name: asked[name] for name in ("method", "url", "headers", "params", "json", "data") if asked.get(name)}
    if isinstance(known.get("data"), bytes | str):
        known["content"] = known.pop("data")
    return await served.cluster.client.request(**known)


def test_it_does_what_it_says() -> None:
    with asyncio.Runner() as runner:
        served = runner.run(Served().__aenter__())
        try:
            check_all(served, runner)
        finally:
            runner.run(served.__aexit__())


def check_all(served: Served, runner: asyncio.Runner) -> None:
    document = runner.run(served.cluster.client.get("/openapi.json")).json()
    found = [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations()]
    operations = [one for one in found if not one.path.startswith(LEFT_OUT)]
    assert {operation.path for operation in operations} >= {"/v1/chat/completions", "/admin/abort", "/ready"}

    for operation in operations:

        @fuzz(6)
        @given(case=operation.as_strategy())
        def each(case: Case) -> None:
            tried["a request made from the OpenAPI document"] += 1
            answer = runner.run(call(served, case))
            if answer.status_code >= 400 and not (answer.status_code == 503 and case.path == "/ready"):
                check_error(answer, 502, 503, 504)
            case.validate_response(answer, checks=CHECKS)

        each()
