"""What processes cost, from /proc."""

from __future__ import annotations

import os

from bench.held.costs import Cpu, cpu_s


def test_the_second_thread_is_the_busiest_besides_the_main_one() -> None:
    before = {7: {7: 1.0, 8: 1.0}, 9: {9: 0.0}}
    after = {7: {7: 4.0, 8: 1.5, 10: 1.0}, 9: {9: 1.0, 11: 0.5}}
    cpu = Cpu.between(before, after, 2.0)
    assert cpu.total == (3.0 + 0.5 + 1.0 + 1.0 + 0.5) / 2
    assert cpu.second_threads == (1.0 + 0.5) / 2


def test_this_process_costs_something() -> None:
    used = cpu_s([os.getpid()])
    assert used[os.getpid()][os.getpid()] > 0
