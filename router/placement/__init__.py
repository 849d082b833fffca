"""Which worker is next: one policy per file, by name in ``policies``; ``ports`` says what a policy is.
CONTRIBUTING.md says how to add one.

``available``     who may be picked at all
``need``          the room a request takes
``skip_prefill``  which requests skip P
``prompt``        what a policy may know about a request; ``chunks`` are the hashes of its prompt
``prefix_index``  which beginnings of prompts each worker was sent
"""

from router.placement.available import Ahead, available, in_question, placeable
from router.placement.need import Need
from router.placement.policies import DECODE_POLICIES, PREFILL_POLICIES
from router.placement.ports import OnGone, PickDecode, PickPrefill
from router.placement.prompt import Prefilled, Prompt
from router.placement.skip_prefill import SkipPrefill, SkipPrefillRule

__all__ = [
    "DECODE_POLICIES",
    "PREFILL_POLICIES",
    "Ahead",
    "Need",
    "OnGone",
    "PickDecode",
    "PickPrefill",
    "Prefilled",
    "Prompt",
    "SkipPrefill",
    "SkipPrefillRule",
    "available",
    "in_question",
    "placeable",
]
