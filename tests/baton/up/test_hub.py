"""Whether a model of the hub can be had: asked of a server of our own, and of nobody."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton_serve.baton.up.hub import is_cached, look_up
from baton_serve.baton.up.preflight import PreflightError

MODEL = "org/name"


@contextmanager
def hub(status: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Its URL, and the paths and tokens that it was asked with."""
    asked: list[tuple[str, str]] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append((self.path, self.headers.get("authorization", "")))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def environ(tmp_path: Path, free_port: int) -> dict[str, str]:
    """Of a machine without a network and with an empty cache."""
    return {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{free_port}"}


def download(environ: dict[str, str], tmp_path: Path, *files: str, index: tuple[str, ...] = ()) -> None:
    folder = tmp_path / "hub" / "models--org--name"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    for file in files:
        (snapshot / file).write_text("{}")
    if index:
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {f: f for f in index}}))


def test_without_a_network_it_ends_at_once_with_what_to_do(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        look_up(MODEL, None, environ)
    host = environ["HF_ENDPOINT"].removeprefix("http://")
    assert str(caught.value) == (
        f"cannot reach {host} to load org/name, and it is not in the local cache; "
        f"pass a local folder, or download it to {tmp_path / 'hub'} first"
    )


def test_without_a_network_what_is_cached_is_loaded_without_asking(environ: dict[str, str], tmp_path: Path) -> None:
    download(environ, tmp_path, "config.json", "tokenizer.json", "model.safetensors")
    assert look_up(MODEL, None, environ) == {"HF_HUB_OFFLINE": "1"}
    assert look_up(MODEL, None, {**environ, "HF_HUB_OFFLINE": "yes"}) == {}


def test_what_is_cached_in_part_is_not_enough(environ: dict[str, str], tmp_path: Path) -> None:
    download(environ, tmp_path, "config.json", "a.safetensors", index=("a.safetensors", "b.safetensors"))
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    for file in ("b.safetensors", "tokenizer_config.json"):
        assert not is_cached(MODEL, None, environ)
        (snapshot / file).touch()
    assert is_cached(MODEL, None, environ)
    (snapshot / "b.safetensors").unlink()
    assert not is_cached(MODEL, None, environ)
    (snapshot / "b.safetensors").touch()
    assert is_cached(MODEL, "abc", environ)
    assert not is_cached(MODEL, "v2", environ)


def test_whoever_says_offline_is_not_asked_again(environ: dict[str, str]) -> None:
    with pytest.raises(PreflightError, match=r"^HF_HUB_OFFLINE is set, and org/name is not in the local cache; pass a"):
        look_up(MODEL, None, {**environ, "HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("status", [200, 307])
def test_a_hub_that_has_it(status: int, environ: dict[str, str]) -> None:
    with hub(status) as (url, asked):
        assert look_up(MODEL, None, {**environ, "HF_ENDPOINT": url, "HF_TOKEN": "sesame"}) == {}
        assert look_up(MODEL, "refs/pr/1", {**environ, "HF_ENDPOINT": f"{url}/"}) == {}
    assert asked == [
        ("/org/name/resolve/main/config.json", "Bearer sesame"),
        ("/org/name/resolve/refs%2Fpr%2F1/config.json", ""),
    ]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_hub_that_does_not_show_it(status: int, environ: dict[str, str]) -> None:
    with hub(status) as (url, _), pytest.raises(PreflightError) as caught:
        look_up(MODEL, "v2", {**environ, "HF_ENDPOINT": url, "HF_TOKEN": "sesame"})
    assert "shows no model org/name at revision v2: the name is wrong, or it wants a token" in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_hub_in_trouble_is_no_hub(environ: dict[str, str]) -> None:
    with (
        hub(503) as (url, _),
        pytest.raises(PreflightError, match=r"^status 503 from 127\.0\.0\.1:\d+ to load org/name"),
    ):
        look_up(MODEL, None, {**environ, "HF_ENDPOINT": url})
