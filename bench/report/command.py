"""What the command lines of benchmarks have in common."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path

from bench.report.arguments import at_least, new_file
from bench.report.model import Report

#: The exit status where this machine lacks what a benchmark needs, which is no failure. The last line that is printed
#: says what there is not: ``there is no CUDA device here``.
LACKING = os.EX_UNAVAILABLE
VLLM_HELP = "a vllm script, a Python, or the folder of an environment; default: on PATH"


def parser(module: str, about: str | None, runs: str = "interleaved runs") -> ArgumentParser:
    """With what each benchmark of ``make bench`` takes: ``--runs``, five by default, and ``--report``."""
    made = ArgumentParser(prog=f"python -m {module}", description=about)
    made.add_argument("--runs", type=at_least(1), default=5, help=f"{runs} (default %(default)s)")
    made.add_argument("--report", type=new_file, metavar="FILE", help="write the report there, as JSON")
    return made


def finish(report: Report, path: Path | None) -> None:
    """Print what was found, and write it where it was asked for."""
    print("\n\n".join((*report.about, *(table.markdown() for table in report.tables))))
    if path is not None:
        report.write(path)


def lacks_gpu() -> bool:
    """Whether torch sees no CUDA device here; says so."""
    import torch

    if torch.cuda.is_available():
        return False
    print("there is no CUDA device here")
    return True
