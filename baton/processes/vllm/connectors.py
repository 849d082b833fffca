"""Which KV connector a vLLM server loads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Connector:
    """A class that vLLM loads. ``module``: where it is; empty: it is one of vLLM's own."""

    name: str
    module: str = ""
    #: Keys of ``kv_connector_extra_config``, beside the duration of leases.
    extra: Mapping[str, object] = field(default_factory=dict)


#: vLLM's own. A D that reads too late gets another prompt's blocks, and nothing tells it.
STOCK = Connector("NixlConnector")
#: Baton's, which has to be installed in vLLM's environment: with a fence, and leases in Redis.
BATON = Connector("BatonConnector", "baton_serve.workers.vllm.connector")
