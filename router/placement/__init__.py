"""Chooses the worker for a request.

``policies``      one file for each, and their names; ``ports`` has their interface, CONTRIBUTING.md how to add one
``choice``        picks one of the available workers; the steps of a request call it
``available``     which workers may be picked at all; ``offer`` are these, of a route that has many
``need``          how much of a worker's cache a request takes
``skip_prefill``  which requests skip P
``prompt``        what a policy may know about a request; ``chunks`` are the hashes of its prompt
``prefix_index``  which prompt prefixes each worker was sent before, in a ``prefix_tree``; ``prefix_holders`` the other
                  way round
"""

from baton_serve.router.placement.available import Ahead, available, in_question, placeable, with_room
from baton_serve.router.placement.choice import choose
from baton_serve.router.placement.need import Need
from baton_serve.router.placement.policies import DECODE_POLICIES, PREFILL_POLICIES
from baton_serve.router.placement.ports import OnGone, PickDecode, PickPrefill
from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.placement.skip_prefill import SkipPrefill, SkipPrefillRule

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
    "choose",
    "in_question",
    "placeable",
    "with_room",
]
