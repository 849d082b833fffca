"""``python -m tests.clients``: what each client can do with Baton's own engine, behind a router with an API key.

It needs a package index, and npm for the client of Node; nothing else is asked for beyond this machine. Environments
are kept in ``.venv-clients``; ``--fresh`` makes them anew, with the newest versions. The exit status is 1 if a call
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.clients.environments import CLIENTS, Client, command, prepared, programs, version
from tests.clients.scripted_model import ScriptedModel
from tests.kits.whole.stack import MODEL, Stack
from tests.structure.imports import ROOT

KEY = "sk-of-the-client-table"
#: Longest that all calls of one client may take, seconds.
TIMEOUT_S = 600
PAGE = ROOT / "docs" / "clients.md"


@dataclass(frozen=True)
class Row:
    """One call. ``why``: what went wrong; empty if it worked. ``result``: what the table shows of the result."""

    call: str
    why: str
    result: str = ""


@dataclass(frozen=True)
class Result:
    """What one client could do. ``version`` empty: it could not be installed."""

    client: Client
    version: str
    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        """The calls that did not work."""
        return [row for row in self.rows if row.why]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", action="append", help="a client, by the beginning of its name")
    parser.add_argument("--fresh", action="store_true", help="install everything again, in the newest versions")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    wanted = [client for client in CLIENTS if not options.only or client.name.startswith(tuple(options.only))]
    if not wanted:
        parser.error(f"no such client; there are {', '.join(client.name for client in CLIENTS)}")
    results = asyncio.run(run(wanted, ROOT / ".venv-clients", fresh=options.fresh))
    show(results)
    if options.write:
        PAGE.write_text(page(results), encoding="utf-8")
    return int(any(result.failed for result in results))


async def run(clients: list[Client], environments: Path, *, fresh: bool) -> list[Result]:
    """Start a Baton, and have each client make its calls."""
    results: list[Result] = []
    scripts = [client.scripted_model for client in clients if client.scripted_model is not None]
    with tempfile.TemporaryDirectory(prefix="baton-clients-") as folder:
        async with ScriptedModel(scripts) as scripted, _stack(Path(folder), scripted.url if scripts else "") as stack:
            for client in clients:
                print(f"{client.name} ...", file=sys.stderr, flush=True)
                results.append(await asyncio.to_thread(_calls, client, environments, stack.router.url, fresh=fresh))
    return results


def _stack(folder: Path, scripted: str) -> Stack:
    """The Baton that clients call. ``scripted``: the URL of a scripted model, which does both legs; empty: none."""
    both_legs = {"prefill": scripted, "decode": scripted} if scripted else {}
    return Stack(folder, router_flags={"api-keys": KEY, **both_legs}, worker_flags={"dtype": "float32"})


def _calls(client: Client, environments: Path, url: str, *, fresh: bool) -> Result:
    if client.uses_node and shutil.which("npm") is None:
        return Result(client, "", [Row("installing it", "there is no npm here")])
    try:
        folder = prepared(client, environments, fresh=fresh)
    except subprocess.CalledProcessError as error:
        return Result(client, "", [Row("installing it", str(error))])
    with tempfile.TemporaryDirectory(prefix="baton-client-") as home:
        path = f"{programs(client, folder)}{os.pathsep}{os.environ['PATH']}"
        model = MODEL if client.scripted_model is None else client.scripted_model.stem
        own = {"BATON_URL": url, "BATON_MODEL": model, "HOME": home, "PATH": path}
        lines, errors = _output(command(client, folder), own)
    rows = [
        Row(line["call"], "" if line["ok"] else line["why"], line.get("result", "")) for line in map(json.loads, lines)
    ]
    if errors:
        rows.append(Row("running to the end", errors))
    return Result(client, version(client, folder), rows)


def _output(words: list[str], own: dict[str, str]) -> tuple[list[str], str]:
    """The lines with calls that a script prints, and what went wrong with the script itself. ``own``: its variables."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")},
        **own,
        "BATON_KEY": KEY,
        "BATON_MODEL_FOLDER": str(ROOT / "baton" / "demo" / "model"),
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(words, cwd=own["HOME"], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [], f"it took longer than {TIMEOUT_S} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"call":')]
    return lines, "" if done.returncode == 0 else done.stderr[-1000:]


def show(results: list[Result]) -> None:
    """Print the table, and why what failed did."""
    table = Table("client", "version", "call", "worked")
    for result in results:
        for number, row in enumerate(result.rows):
            names = ("", "") if number else (result.client.name, result.version)
            table.add_row(*names, row.call, "NO" if row.why else "yes")
        table.add_section()
    console = Console()
    console.print(table)
    for result in results:
        for row in result.failed:
            console.print(f"{result.client.name}: {row.call}: {row.why}", markup=False)
    num_calls, num_failed = (sum(map(len, some)) for some in zip(*((r.rows, r.failed) for r in results), strict=True))
    console.print(f"{num_calls - num_failed} of {num_calls} calls worked")


def page(results: list[Result]) -> str:
    """The table as a page of the docs."""
    lines = [
        "# Clients",
        "",
        "What the clients that people use can do with Baton's own engine, split between a prefill and a decode worker,",
        "with an API key, in the newest versions. `make test-clients` makes this page (`ARGS=--write`), and each call",
        "is a line in `tests/clients/calls/`. The model is the demo model, which calls simple tools.",
        "Agents talk with a scripted model behind the same router.",
        "Behind lm-eval's tasks are its metrics, and in brackets those that `transformers` gives with the same model.",
        "",
        "| client | version | call | |",
        "|---|---|---|---|",
    ]
    for result in results:
        lines += [f"| {result.client.name} | {result.version} | {row.call} | {_word(row)} |" for row in result.rows]
    return "\n".join([*lines, ""])


def _word(row: Row) -> str:
    if row.why:
        return "fails"
    return f"works: {row.result}" if row.result else "works"


if __name__ == "__main__":
    sys.exit(main())
