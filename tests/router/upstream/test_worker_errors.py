"""What a worker's errors mean."""

from __future__ import annotations

from baton_serve.router.upstream.worker_errors import error_event, from_worker, may_try_another


def test_engines_errors_keep_their_fields() -> None:
    error = from_worker(400, b'{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}')
    assert (error.status, error.message, error.type, error.code) == (400, "no", "BadRequestError", "400")
    assert from_worker(503, b"<html>").status == 502
    assert from_worker(302, b"").status == 502
    assert [may_try_another(from_worker(status, b"")) for status in (400, 404, 413, 422, 429, 500, 302)] == [
        False,
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_an_error_event_is_found_behind_a_role_chunk() -> None:
    error = error_event(b'data: {"choices":[]}\n\ndata: {"error":{"message":"no","code":400}}\n\n')
    assert error is not None
    assert (error.status, error.message) == (400, "no")
    assert error_event(b'data: {"choices":[{"text":"data: {\\"error\\""}]}\n\n') is None
