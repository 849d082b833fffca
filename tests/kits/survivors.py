"""What is left of requests that are over while no garbage collector runs: what only the collector would free."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType, TracebackType

_ROOT = Path(__file__).parents[2]
_OURS = tuple(str(_ROOT / "baton_serve" / room) + "/" for room in ("core", "router", "workers"))


class Survivors:
    """Counts what is left of some types, and the frames of ours that exceptions keep with all their variables."""

    def __init__(self, kinds: Collection[type]) -> None:
        self._kinds = frozenset(kinds)

    def count(self) -> Counter[str]:
        """By name: the types, and the functions whose frames are left."""
        return Counter(_name(one) for one in self._found())

    def _found(self) -> Iterator[object]:
        for one in gc.get_objects():
            kind = type(one)
            if kind in self._kinds or (kind is TracebackType and _is_ours(one.tb_frame)):
                yield one


@contextlib.contextmanager
def without_collector(kinds: Collection[type]) -> Iterator[Survivors]:
    """Nothing is collected in the block: it counts what has come to be in it and is still there."""
    gc.disable()
    gc.freeze()  # what is here already is not counted
    try:
        yield Survivors(kinds)
    finally:
        gc.unfreeze()
        gc.enable()


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _name(one: object) -> str:
    if isinstance(one, TracebackType):
        code = one.tb_frame.f_code
        return f"{Path(code.co_filename).stem}.{code.co_qualname}"
    return type(one).__name__
