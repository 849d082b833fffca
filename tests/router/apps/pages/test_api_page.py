"""docs/api.md has a row for each parameter that the models know and for each route that clients may ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from baton_serve.core.protocol.openai.choices import ChoiceFields, CompletionChoiceFields
from baton_serve.core.protocol.openai.hints import Hints
from baton_serve.core.protocol.openai.objects import Unsupported
from baton_serve.core.protocol.openai.requests import NO_EFFECT, ChatRequest, CompletionRequest, StreamOptions
from baton_serve.router.dialects.messages.request import CountRequest, MessagesRequest
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.request.validated import PATHS
from tests.kits.router.cluster import Cluster
from tests.structure.imports import ROOT

#: Beginnings of paths that are for people and operators; the README and docs/dashboard.md have those.
NOT_FOR_CLIENTS = ("/admin", "/dashboard", "/docs", "/openapi.json")


def rows(index: int) -> list[list[str]]:
    """The cells of one of the page's tables."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.split("<!-- begin: ")[index].partition("<!-- end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def states() -> dict[str, tuple[str, str]]:
    """Of which endpoint each parameter is, and what becomes of it."""
    found = {}
    chat, completions = ChatRequest.model_fields, CompletionRequest.model_fields
    for name in {*chat, *completions}:
        state = "hint" if name in Hints.model_fields else "works"
        found[name] = (
            "both" if name in chat and name in completions else "chat" if name in chat else "completions",
            state,
        )
    for name in NO_EFFECT - Hints.model_fields.keys():
        found[name] = ("both", "refused")
    for name in CompletionChoiceFields.model_fields:
        found[name] = ("both" if name in ChoiceFields.model_fields else "completions", "works")
    unsupported = StreamOptions.__annotations__
    for name in StreamOptions.model_fields:
        state = "refused" if unsupported[name] in (Unsupported, "Unsupported") else "works"
        found[f"stream_options.{name}"] = ("both", state)
    return found


def test_the_table_of_parameters_is_that_of_the_models() -> None:
    table = rows(1)
    shown = {name.strip("`"): (of, state) for name, of, state, _ in table}
    assert len(shown) == len(table), "a parameter has two rows"
    assert shown == states()
    assert all(bool(split) == (state != "refused") for _, _, state, split in table)


def dialect_states(model: type[ResponseRequest] | type[MessagesRequest]) -> dict[str, str]:
    """What becomes of each parameter of a dialect."""
    (refuses,) = get_args(Unsupported)[1:]
    found = {}
    for name, field in model.model_fields.items():
        found[name] = "refused" if refuses in field.metadata else "hint" if name in model.HINTS else "works"
    return found


@pytest.mark.parametrize(("index", "model"), [(3, ResponseRequest), (4, MessagesRequest)])
def test_the_tables_of_the_dialects_are_those_of_the_models(
    index: int, model: type[ResponseRequest] | type[MessagesRequest]
) -> None:
    table = rows(index)
    shown = {name.strip("`"): state for name, state, _ in table}
    assert len(shown) == len(table), "a parameter has two rows"
    assert shown == dialect_states(model)
    if model is MessagesRequest:
        counted = [name for name in shown if shown[name] != "refused"]
        assert set(counted[: counted.index("output_format") + 1]) == {
            name for name, state in dialect_states(CountRequest).items() if state == "works"
        }


async def test_the_table_of_endpoints_is_that_of_the_routes(cluster: Cluster) -> None:
    schema: Mapping[str, Any] = (await cluster.client.get("/openapi.json")).json()
    routes = {path for path in schema["paths"] if not path.startswith(NOT_FOR_CLIENTS) and path != "/"}
    table = rows(2)
    assert {path.strip("`") for path, _, _ in table} == routes and len(table) == len(routes)
    assert routes >= PATHS
    for path, key, _ in table:
        assert (key == "yes") == (path.strip("`").startswith("/v1/") or path.strip("`") in PATHS)
