"""What is compared: a model in a type of numbers on so many threads."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from itertools import product

from bench.engine.work import BATCHES, Decode, Prefill, Trace, Work
from bench.models.llama import LlamaSize
from bench.models.sized import SIZES

DTYPES = ("float32", "bfloat16")
THREADS = (1, 2)


@dataclass(frozen=True)
class Setup:
    """Model, type of weights and cache, and threads of the model."""

    size: LlamaSize
    dtype: str
    threads: int

    def __str__(self) -> str:
        return f"{self.size.name} {self.dtype} {self.threads}"

    @property
    def works(self) -> tuple[Work, ...]:
        """What is asked, so long that a piece takes about a second, and no longer than some seconds."""
        prompt, tokens = _LENGTHS[self.size.name]
        decodes = (Decode(batch, max(8, tokens // _SHARE[batch])) for batch in BATCHES)
        return Prefill(prompt), *decodes, Trace(prompt // 4, max(8, tokens // 8))


#: Tokens of the long prompt, and of one stream that decodes alone.
_LENGTHS = {"5M": (2000, 192), "50M": (1000, 64), "500M": (300, 16)}
#: Of these tokens, the part that each of so many streams decodes.
_SHARE = {1: 1, 8: 2, 32: 4}

ALL = tuple(Setup(SIZES[name], dtype, threads) for name, dtype, threads in product(SIZES, DTYPES, THREADS))
#: Each size, each type and each number of threads at least once.
FEW = (
    Setup(SIZES["5M"], "float32", 1),
    Setup(SIZES["50M"], "bfloat16", 1),
    Setup(SIZES["500M"], "bfloat16", 2),
)


def by_name(name: str) -> Setup:
    """The setup of ``5M,float32,1``. Raises ArgumentTypeError for another."""
    found = [setup for setup in ALL if str(setup).replace(" ", ",") == name]
    if not found:
        raise ArgumentTypeError(f"no setup {name!r}; one of them is {str(ALL[0]).replace(' ', ',')}")
    return found[0]
