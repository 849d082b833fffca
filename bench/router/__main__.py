"""``python -m bench.router``: the CPU time and latency of Baton's router beside those of others.

It needs gcc and two cores. Peers are installed into a folder of their own when they are not there; one that cannot be
is named, and the others are measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench.performance.machine import ROOT
from bench.processes import Cores, two_cores
from bench.report import command
from bench.report.arguments import above_zero
from bench.report.model import Report
from bench.router.harness.engines import EngineError
from bench.router.harness.load import LoadError
from bench.router.native.build import BuildError
from bench.router.result.report import report
from bench.router.rounds import Found, Plan, measure
from bench.router.routers.baton import COMPILED, Baton
from bench.router.routers.nginx import Nginx
from bench.router.routers.router import Peer, Router, RouterError
from bench.router.routers.wheels import sglang_router, vllm_router
from bench.router.workloads import WORKLOADS, Workload
from deploy.compiled_tree import TARGET, NotCompiledError, make_tree

BUILD = ROOT / "build" / "bench"
#: Workloads of a Baton with several processes.
SCALING = ("A", "B")


def main() -> int:
    """Measure what was asked for; 1 if nothing could be measured."""
    given = _parser().parse_args()
    try:
        found = _measured(given)
    except (BuildError, EngineError, LoadError, RouterError) as error:
        print(f"bench.router: {error}", file=sys.stderr)
        return 1
    command.finish(found, given.report)
    return 0 if found.tables else 1


def named_folder(text: str) -> Baton:
    """``NAME=FOLDER``. Raises ArgumentTypeError."""
    name, equals, folder = text.partition("=")
    if not equals or not name.replace("-", "_").isidentifier() or not (Path(folder) / "baton").is_dir():
        raise argparse.ArgumentTypeError(f"not NAME=FOLDER with a checkout of Baton: {text!r}")
    return Baton(name, Path(folder).resolve())


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.router", __doc__)
    add = parser.add_argument
    add("--seconds", type=above_zero, help="length of each window (default: 2 to 4, as the workload says)")
    add("--router", action="append", metavar="NAME", help="only this one; may be given several times")
    names = ", ".join(WORKLOADS)
    add("--workload", action="append", choices=WORKLOADS, metavar="NAME", help=f"only this one, of: {names}")
    help_text = "one more Baton, of another checkout, measured in the same runs; may be given several times"
    add("--baton", action="append", type=named_folder, default=[], metavar="NAME=FOLDER", help=help_text)
    add("--processes", action="store_true", help="only: one Baton with one process and with two")
    peers = Path(os.environ.get("BENCH_BUILD", BUILD / "peers"))
    help_text = "where peers are installed (default: the variable BENCH_BUILD, else build/bench/peers)"
    add("--peers", type=Path, default=peers, metavar="FOLDER", help=help_text)
    return parser


def _measured(given: argparse.Namespace) -> Report:
    cores = two_cores()
    if cores is None:
        raise RouterError("it needs two cores: one for the router, one for load and engines")
    found, scaling = Found(), None
    batons: list[Router] = [Baton(), Baton(COMPILED, TARGET), *given.baton]
    routers = _chosen(given, batons)
    if not given.processes:
        present = [one for one in routers if _is_there(one, found)]
        workloads = [one for name, one in WORKLOADS.items() if not given.workload or name in given.workload]
        measured = measure(_plan(given, cores, present, workloads), _say)
        found = Found(measured.runs, found.missing | measured.missing)
    if given.processes or not (given.router or given.workload or given.baton):
        scaled: list[Router] = [Baton("one process"), Baton("two processes", num_processes=2)]
        scaling = measure(_plan(given, cores, scaled, [WORKLOADS[name] for name in SCALING]), _say)
    names = [one.name for one in routers]
    return report(found, [one.name for one in batons if one.name in names], names, scaling)


def _plan(given: argparse.Namespace, cores: Cores, routers: list[Router], workloads: list[Workload]) -> Plan:
    return Plan(routers, workloads, given.runs, cores, _folder(), given.seconds)


def _folder() -> Path:
    folder = BUILD / "router"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _chosen(given: argparse.Namespace, batons: list[Router]) -> list[Router]:
    peers = given.peers.absolute()
    everyone = [*batons, Nginx(peers), sglang_router(peers), vllm_router(peers)]
    if not given.router:
        return everyone
    names = [one.name for one in everyone]
    if unknown := set(given.router) - set(names):
        raise RouterError(f"there is no router {', '.join(sorted(unknown))}, only {', '.join(names)}")
    return [one for one in everyone if one.name in given.router]


def _is_there(router: Router, found: Found) -> bool:
    """Whether a router can be started; compiles Baton, and installs a peer that is not there."""
    try:
        if isinstance(router, Baton) and router.folder == TARGET:
            make_tree()
        elif isinstance(router, Peer):
            router.install()
    except NotCompiledError as error:
        found.missing[router.name] = f"its modules could not be compiled: {str(error).splitlines()[-1]}"
        return False
    except RouterError as error:
        found.missing[router.name] = str(error)
        return False
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
