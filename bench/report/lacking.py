"""How a benchmark says that this machine lacks what it needs, which is no failure."""

from __future__ import annotations

import os

#: The exit status. The last line that is printed says what there is not: ``there is no CUDA device here``.
LACKING = os.EX_UNAVAILABLE


def lacks_gpu() -> bool:
    """Whether torch sees no CUDA device here; says so."""
    import torch

    if torch.cuda.is_available():
        return False
    print("there is no CUDA device here")
    return True
