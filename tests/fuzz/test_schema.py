"""The router does what its own OpenAPI says: requests made from it, by schemathesis, and answers compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from hypothesis import given
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.kits.fuzz.profile import Stage, check_error, fuzz, tried
from tests.kits.router.cluster import Cluster, make_settings

if TYPE_CHECKING:
    from schemathesis import Case

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
#: Streams that do not end, and pages for people.
LEFT_OUT = ("/dashboard", "/admin/live", "/admin/dashboard")


class Described:
    """A router with workers, and its schema."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.run(self._start())
        stage.at_end(self.cluster.close)
        document = self.stage.run(self.cluster.client.get("/openapi.json")).json()
        self.operations = [
            found.ok()
            for found in schemathesis.openapi.from_dict(document).get_all_operations()
            if not found.ok().path.startswith(LEFT_OUT)
        ]

    async def _start(self) -> None:
        self.cluster = Cluster(make_settings())
        await self.cluster.start()
        for role in ("prefill", "decode"):
            await self.cluster.add(role)

    def call(self, case: Case) -> httpx.Response:
        asked: dict[str, Any] = case.as_transport_kwargs(base_url=self.cluster.url)
        known = {
            name: asked[name] for name in ("method", "url", "headers", "params", "json", "data") if asked.get(name)
        }
        if isinstance(known.get("data"), bytes | str):
            known["content"] = known.pop("data")
        return self.stage.run(self.cluster.client.request(**known))


@pytest.fixture(scope="module")
def described(stage: Stage) -> Described:
    return Described(stage)


def test_it_does_what_it_says(described: Described) -> None:
    assert {operation.path for operation in described.operations} >= {"/v1/chat/completions", "/admin/abort", "/ready"}

    for operation in described.operations:

        @fuzz(6)
        @given(case=operation.as_strategy())
        def each(case: Case) -> None:
            tried["a request made from the OpenAPI document"] += 1
            answer = described.call(case)
            if answer.status_code >= 400 and not (answer.status_code == 503 and case.path == "/ready"):
                check_error(answer, 502, 503, 504)
            case.validate_response(answer, checks=CHECKS)

        each()
