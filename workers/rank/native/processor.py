"""What this processor is good at."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def multiplies_pairs() -> bool:
    """Whether tiles multiply bfloat16 two at a time: if the processor has an instruction for it, and is not Intel's.

    Intel's take four times as long for that instruction, which multiplies twice as many numbers, as for one that
    multiplies float32: 86 GFLOPS instead of 176 (Emerald Rapids). AMD's take as long for both (Zen 5). Where this is
    False, bfloat16 are made float32 and multiplied as such.
    """
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("avx512bf16")) and not is_of_intel()


@cache
def is_of_intel() -> bool:
    """Whether Intel made this processor."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
