"""What shows requests to people and programs is given facts, and never the record of a request."""

from __future__ import annotations

import pytest

from tests.structure.imports import ROOT, imported

OBSERVERS = (
    "router/admin",
    "router/dashboard",
    "router/telemetry/metrics",
    "router/telemetry/tracing",
    "router/steps/end_log.py",
)
#: The modules of ``router.request`` that say something about requests and hold none.
SHOWN = ("router.request.ended", "router.request.facts", "router.request.states", "router.request.view")


@pytest.mark.parametrize("observer", OBSERVERS)
def test_observers_do_not_know_the_record_of_a_request(observer: str) -> None:
    path = ROOT / observer
    of_requests = {
        name
        for source in ([path] if path.is_file() else sorted(path.rglob("*.py")))
        for name in imported(source)
        if name.startswith("router.request.")
    }
    assert of_requests, "it shows no request at all"
    assert {name for name in of_requests if not name.startswith(SHOWN)} == set()
