"""CPU time and memory as /proc has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.router.harness.cpu import PAGE_BYTES, TICKS_PER_S, Usage, parse_stat, usage_of


def test_a_line_counts_the_process_and_its_ended_children() -> None:
    line = "41 (a) b (c) S 1 41 41 0 -1 4194560 9 8 7 6 200 30 4 1 20 0 3 0 77 123456789 512 18446744073709551615"
    assert parse_stat(line) == Usage(235 / TICKS_PER_S, 512 * PAGE_BYTES)


def test_a_process_counts_with_all_under_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    alone = parse_stat(Path(f"/proc/{parent.pid}/stat").read_text())
    assert usage_of(parent.pid).rss_bytes > alone.rss_bytes
    parent.communicate(b"\n")
    assert usage_of(parent.pid) == Usage(), "it has ended"
    assert usage_of(os.getpid()).cpu_s > 0
