"""What a worker's errors mean."""

from __future__ import annotations

from baton_serve.router.upstream.worker_errors import from_worker, may_try_another


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
