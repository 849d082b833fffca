"""``python -m bench.block_reads``: how fast block reads are beside plain copies: over shared memory and over TCP, or
between two processes on one GPU.

The numbers mean something only on a machine that does little else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import msgspec

from bench.block_reads.findings import GPU, HOST, Case, Findings
from bench.block_reads.pages import report, summary
from bench.report import command
from bench.report.arguments import at_least, counts
from bench.report.command import LACKING, lacks_gpu

#: For each memory, the transports of UCX (``Case.tls``) by the name that the report has for them.
WAYS = {HOST: {"shared memory": "", "TCP": "tcp"}, GPU: {"GPU memory": ""}}
COUNTS = [1, 4, 16, 64, 256]
SOURCE_MIB = 512
#: Most bytes of one read.
MAX_READ_MIB = 256
CASE_TIMEOUT_S = 300.0


def main() -> int:
    """Parse, measure, print."""
    given = _parser().parse_args()
    if given.memory == GPU and lacks_gpu():
        return LACKING
    found: dict[str, list[Findings]] = {}
    for name, tls in WAYS[given.memory].items():
        for kib in given.piece_kib:
            case = case_of(tls, kib * 1024, given.runs, given.source_mib * 2**20, given.memory)
            found.setdefault(name, []).append(run(case))
            print(f"{name}, {summary(found[name][-1])}", flush=True)
    command.finish(report(found, given.runs), given.report)
    return 0


def case_of(tls: str, piece_bytes: int, num_runs: int, source_bytes: int, memory: str = HOST) -> Case:
    """The case with every count that memory has room for."""
    max_bytes = min(MAX_READ_MIB * 2**20, source_bytes)
    counts = [count for count in COUNTS if count * piece_bytes <= max_bytes]
    return Case(tls, piece_bytes, counts, num_runs, source_bytes, memory)


def run(case: Case) -> Findings:
    """Measure a case in a process of its own, because UCX chooses its transports once. Raises CalledProcessError."""
    argv = [sys.executable, "-m", "bench.block_reads.reader", msgspec.json.encode(case).decode()]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=CASE_TIMEOUT_S)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Findings)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.block_reads", __doc__)
    parser.set_defaults(runs=7)
    parser.add_argument("--memory", choices=[HOST, GPU], default=HOST, help="default %(default)s")
    parser.add_argument(
        "--piece-kib", type=counts, default=[16, 64, 256, 1024], metavar="LIST", help="default 16,64,256,1024"
    )
    parser.add_argument(
        "--source-mib", type=at_least(1), default=SOURCE_MIB, help="memory that is read from (default %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
