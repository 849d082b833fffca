"""``python -m bench.vllm``: Baton beside other routers, in front of the same two stock vLLM servers.

The routers take turns, with the same requests in each round. Some clients leave, and once in each round D's engine
stands still for longer than P's leases last, while D's HTTP port goes on to take requests. The right answers are P's
own, asked one after the other before the routers run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import VllmError
from bench.client import AnswerError, Client
from bench.report.arguments import at_least, new_file
from bench.report.command import VLLM_HELP
from bench.vllm.result import RoundResult, as_json, result_of, table
from bench.vllm.round import Right, run_round
from bench.vllm.routers import BATON, RouterError, fill, gaps, router
from bench.vllm.servers import Servers, servers
from bench.vllm.traffic import Asked, Shape, make_round

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence


async def measure(
    vllm: str | None, commands: Mapping[str, str], rounds: int, seed: int, folder: Path
) -> AsyncIterator[dict[str, list[RoundResult]]]:
    """Run all routers ``rounds`` times; yields all results so far after each time.

    The order is reversed each time, so that none is always first.
    """
    shape = Shape()
    results: dict[str, list[RoundResult]] = {name: [] for name in commands}
    async with servers(vllm, folder) as both:
        for number in range(rounds):
            asked = make_round(seed + number, shape)
            right = await right_answers(both, asked)
            for name in list(commands)[:: 1 if number % 2 == 0 else -1]:
                with HeldPorts() as ports:
                    port = ports.take()
                    async with router(name, fill(commands[name], gaps(both, port)), port, folder) as url:
                        done = await run_round(both, url, asked, right, shape)
                results[name].append(result_of(done, right))
                _show(name, number, results[name][-1])
            yield results


async def right_answers(both: Servers, asked: Sequence[Asked]) -> dict[int, Right]:
    """What P answers when it is asked for whole answers, one after the other. Raises AnswerError."""
    right = {}
    async with Client() as client:
        for one in asked:
            got = await client.ask(both.p.url, {"model": MODEL_NAME, **one.body})
            right[one.number] = Right(got["choices"][0]["text"], got["usage"]["prompt_tokens"])
    return right


def _show(name: str, number: int, result: RoundResult) -> None:
    stranded = f"stranded {result.stranded:.0f} and {result.left_behind:.0f}"
    print(
        f"round {number} {name}: {result.verdicts} {result.counts} {stranded}",
        *result.errors,
        "" if result.idle else "NOT IDLE",
        file=sys.stderr,
        flush=True,
    )


def named_command(text: str) -> tuple[str, str]:
    """``NAME=COMMAND``. Raises ArgumentTypeError."""
    name, equals, command = text.partition("=")
    if not equals or (not name.isidentifier() and not name.replace("-", "_").isidentifier()):
        raise argparse.ArgumentTypeError(f"not NAME=COMMAND: {text!r}")
    return name, command


def main() -> int:
    """Measure, and print the table of all rounds so far after each round."""
    parser = argparse.ArgumentParser(prog="bench.vllm", description=__doc__)
    parser.add_argument("--vllm", help=VLLM_HELP)
    parser.add_argument(
        "--router",
        type=named_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more router; in braces can stand port, prefill, prefill_port, decode, decode_port",
    )
    parser.add_argument("--rounds", type=at_least(1), default=4, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default %(default)s)")
    parser.add_argument("--json", type=new_file, help="write the numbers of every round there")
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="baton-bench-vllm-"))
    print(f"logs are in {folder}", file=sys.stderr)
    try:
        asyncio.run(_report(given, folder))
    except (VllmError, ChildDiedError, RouterError, AnswerError) as error:
        print(f"bench.vllm: {error}", file=sys.stderr)
        return 1
    return 0


async def _report(given: argparse.Namespace, folder: Path) -> None:
    commands = {"baton": BATON, **dict(given.router)}
    async for results in measure(given.vllm, commands, given.rounds, given.seed, folder):
        print(table(results), flush=True)
        if given.json:
            given.json.write_text(json.dumps(as_json(results), indent=1))


if __name__ == "__main__":
    sys.exit(main())
