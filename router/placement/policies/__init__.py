"""The placement policies, by the names that the settings ``pick_prefill`` and ``pick_decode`` also have."""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.router.placement.policies.affinity import Affinity
from baton_serve.router.placement.policies.least_loaded import LeastLoaded
from baton_serve.router.placement.policies.prefix import Prefix
from baton_serve.router.placement.policies.round_robin import RoundRobin
from baton_serve.router.placement.policies.two_choices import TwoChoices
from baton_serve.router.placement.ports import OnGone, PickDecode, PickPrefill

PREFILL_POLICIES: dict[str, Callable[[OnGone], PickPrefill]] = {
    "least_loaded": lambda _on_gone: LeastLoaded(),
    "round_robin": lambda _on_gone: RoundRobin(),
    "two_choices": lambda _on_gone: TwoChoices(),
    "prefix": Prefix,
}
DECODE_POLICIES: dict[str, Callable[[OnGone], PickDecode]] = {
    "least_loaded": lambda _on_gone: LeastLoaded(),
    "round_robin": lambda _on_gone: RoundRobin(),
    "two_choices": lambda _on_gone: TwoChoices(),
    "affinity": Affinity,
}
