"""``python -m bench.vllm``: Baton beside other routers, in front of the same two stock vLLM servers.

The routers take turns, with the same requests in each round. Some clients leave, and once in each round D's engine
stands still for longer than P's leases last, while D's HTTP port goes on to take requests. The right answers are P's
own, asked one after the other before the routers run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import VllmError, find_vllm
from bench.client import AnswerError, Client
from bench.connector.pair import Pair, pair
from bench.report.arguments import at_least
from bench.report.command import VLLM_HELP
from bench.router.routers.router import RouterError
from bench.vllm.result import RoundResult, result_of, table
from bench.vllm.round import Round, run_round
from bench.vllm.routers import BATON, fill, gaps, router
from bench.vllm.servers import SHAPE
from bench.vllm.traffic import Asked, Shape, make_round


async def measure(given: argparse.Namespace, folder: Path) -> None:
    """Run all routers in each round, and print the table of all rounds so far after each.

    The order is reversed each time, so that none is always first.
    """
    commands = {"baton": BATON, **dict(given.router)}
    shape = Shape()
    results: dict[str, list[RoundResult]] = {name: [] for name in commands}
    async with pair(find_vllm(given.vllm), SHAPE, folder) as servers:
        for number in range(given.rounds):
            asked = make_round(given.seed + number, shape)
            right = await right_answers(servers, asked)
            for name in list(commands)[:: 1 if number % 2 == 0 else -1]:
                with HeldPorts() as ports:
                    port = ports.take()
                    async with router(name, fill(commands[name], gaps(servers, port)), port, folder) as url:
                        done = await run_round(servers, url, asked, shape)
                results[name].append(result := result_of(done, right))
                _show(f"round {number} {name}", done, result)
            print(table(results).markdown(), flush=True)


def _show(what: str, done: Round, result: RoundResult) -> None:
    verdicts = ", ".join(f"{verdict} {number}" for verdict, number in result.verdicts.items())
    errors = sorted({one.error for one in done.seen if one.error})
    idle = "" if done.idle else "NOT IDLE"
    print(f"{what}: {verdicts}", result.counts, *errors, idle, file=sys.stderr, flush=True)


async def right_answers(servers: Pair, asked: Sequence[Asked]) -> dict[int, str]:
    """What P answers when it is asked for whole answers, one after the other. Raises AnswerError."""
    async with Client() as client:
        answers = [await client.ask(servers.p, {"model": MODEL_NAME, **one.body}) for one in asked]
    return {one.number: answer["choices"][0]["text"] for one, answer in zip(asked, answers, strict=True)}


def named_command(text: str) -> tuple[str, str]:
    """``NAME=COMMAND``. Raises ArgumentTypeError."""
    name, equals, command = text.partition("=")
    if not equals or not name.replace("-", "_").isidentifier():
        raise argparse.ArgumentTypeError(f"not NAME=COMMAND: {text!r}")
    return name, command


def main() -> int:
    """Measure, and print the table of all rounds so far after each round."""
    parser = argparse.ArgumentParser(prog="python -m bench.vllm", description=__doc__)
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
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="baton-bench-vllm-"))
    print(f"logs are in {folder}", file=sys.stderr)
    try:
        asyncio.run(measure(given, folder))
    except (VllmError, ChildDiedError, RouterError, AnswerError) as error:
        print(f"bench.vllm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
