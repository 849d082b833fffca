"""Which secrets a process gets from the environment of the process that starts it: only the ones that it needs.

A rank executes many libraries and reads files of a hub. If one of these makes it show its environment, the keys of
clients must not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from baton_serve.core.process.settings import SECRET

#: A helper is any other program: Redis, a compiler, the processes that renew leases and that try forms.
Kind = Literal["router", "worker", "vllm", "rank", "helper"]

_HUB: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
_TRACES: Final = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
#: ``baton up`` gives each vLLM server the key that the router has for it; no process inherits one.
_SERVER_KEY: Final = frozenset({"VLLM_API_KEY"})


def _variables(*settings: str) -> frozenset[str]:
    """The variables of these settings, and the variables that name files with their values."""
    return frozenset(f"BATON_{name.upper()}{suffix}" for name in settings for suffix in ("", "_FILE"))


_BETWEEN: Final = _variables("redis_url", "redis_password", "internal_token")
GIVEN: Final[dict[Kind, frozenset[str]]] = {
    "router": _BETWEEN | _variables("admin_token", "api_keys", "vllm_api_keys") | _TRACES,
    "worker": _BETWEEN | _HUB,
    "vllm": _BETWEEN | _HUB | _TRACES,
    "rank": _HUB,
    "helper": frozenset(),
}
SECRETS: Final = _variables(*SECRET) | _HUB | _TRACES | _SERVER_KEY


def environ_for(kind: Kind, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the secrets that a process of this kind does not need."""
    withheld = SECRETS - GIVEN[kind]
    return {name: value for name, value in environ.items() if name not in withheld}
