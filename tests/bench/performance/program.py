"""A benchmark that does what the environment says: for the tests of how benchmarks are run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from bench.report.command import LACKING
from bench.report.model import Report


def main() -> None:
    """End well or badly."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--vllm", default="no vLLM")
    given = parser.parse_args()
    match os.environ["BENCHMARK_DOES"]:
        case "well":
            Report("Title", "command", [f"{given.runs} runs", given.vllm]).write(given.report)
        case "fail":
            print("Traceback ...")
            print("no vLLM here\n")
            sys.exit(3)
        case "lack":
            print("there is no third hand here")
            sys.exit(LACKING)
        case "nonsense":
            given.report.write_text("[]")
        case "hang":
            signal.pause()


if __name__ == "__main__":
    main()
