"""``baton up`` with TLS everywhere: clients, router processes, workers, and the handshake before a block read."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kits.baton.up_process import ROOT, RealUpProcess
from tests.kits.certificates import Authority


def variables(authority: Authority) -> dict[str, str]:
    own = authority.of("router.internal")
    return {f"BATON_{name.upper()}": path for name, path in own.internal.items()} | {
        f"BATON_ROUTER_{name.upper()}": path for name, path in own.public.items()
    }


@pytest.fixture
def up(tmp_path: Path, authority: Authority) -> Iterator[RealUpProcess]:
    flags = ("--port", "0", "--routers", "2", "--threads-per-worker", "1")
    with RealUpProcess(tmp_path, *flags, **variables(authority)) as process:
        yield process


def ask(url: str, authority: Authority, body: dict[str, Any] | None = None) -> Any:
    trust = ssl.create_default_context(cafile=authority.ca)
    return httpx.request("GET" if body is None else "POST", url, json=body, timeout=120, verify=trust).json()


def operator(up: RealUpProcess, command: str, url: str, authority: Authority) -> Any:
    """What ``baton COMMAND --json`` prints, which finds the token where ``up`` has put it."""
    done = up.baton(command, "--json", "--url", url, "--ca-file", str(authority.ca))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_everything_serves_over_tls(up: RealUpProcess, authority: Authority) -> None:
    screen = up.until_ready()
    assert "Baton serves baton-demo" in screen, "its own question was answered, too"
    found = re.search(r"https://127\.0\.0\.1:\d+", screen)
    assert found is not None and "http://" not in screen
    url = found[0]
    asked = {"model": "baton-demo", "prompt": "What is a lease? A lease", "max_tokens": 24, "ignore_eos": True}
    for _ in range(4):
        assert ask(f"{url}/v1/completions", authority, asked)["usage"]["completion_tokens"] == 24
    workers = operator(up, "workers", url, authority)["workers"]
    assert len(workers) == 2
    loads = {worker["role"]: ask(f"{worker['url']}/load", authority) for worker in workers}
    assert loads["decode"]["peers_connected"] == 1, "D has read what P kept"
    assert operator(up, "requests", url, authority) == {"requests": [], "unreachable_routers": []}
    up.stop_well()
    logs = "".join(path.read_text() for path in up.log_dir.iterdir())
    assert "Traceback" not in logs and "no TLS" not in logs and "certificate" not in logs


def test_a_file_that_cannot_be_used_is_one_sentence_before_anything_is_started(
    tmp_path: Path, authority: Authority
) -> None:
    wrong = variables(authority) | {"BATON_INTERNAL_TLS_KEY_FILE": str(authority.of("p1.internal").key)}
    with RealUpProcess(tmp_path, "--port", "0", **wrong) as process:
        code, errors = process.finish()
    assert code == 1 and len(errors.splitlines()) == 1, errors
    assert re.search(r"baton: internal_tls_key_file: .* is not the key of the certificate in ", errors)


@pytest.mark.parametrize("command", ["router", "worker"])
def test_a_process_of_its_own_says_so_too(command: str, authority: Authority) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    environ |= variables(authority) | {"BATON_INTERNAL_CA_FILE": "/nowhere/ca.pem"}
    argv = [sys.executable, "-m", "baton_serve", command, "--port", "0", "--redis-url", ""]
    own = (
        ["--prefill", "https://p:1", "--decode", "https://d:1"]
        if command == "router"
        else ["--model", "baton/demo/model"]
    )
    done = subprocess.run([*argv, *own], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{command}: internal_ca_file: /nowhere/ca.pem cannot be read: No such file or directory\n"
