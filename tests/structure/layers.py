"""Who may import whom, in one place. A module may import rooms of the rows below its own, and its own room.

A room is a module or a package. Rows are from top to bottom; rooms in one row do not know each other. What only typing
needs counts as well. ``python -m tests.structure.layers`` draws the picture in docs/structure.md.
"""

from __future__ import annotations

#: By the package that has the rooms; "" is the project.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (
        ("baton_serve",),
        ("baton",),
        ("router", "workers"),
        ("core",),
    ),
    "baton_serve": (("__main__",),),
    "baton": (
        ("cli",),
        ("torture",),
        ("cluster", "operator", "up"),
        ("settings",),
        ("config", "demo", "processes", "safe_path"),
    ),
    "baton.torture": (
        ("command",),
        ("report",),
        ("run",),
        ("vllm_shape",),
        ("shape", "verdict"),
        ("clients", "faults"),
        ("records",),
    ),
    "router": (
        ("main",),
        ("apps",),
        ("admin", "build", "dashboard", "front"),
        ("parts", "peers", "steps", "vllm"),
        ("dialects", "edge", "engines", "telemetry"),
        ("request", "settings"),
        ("queue",),
        ("placement",),
        ("pool",),
        ("renewal", "upstream"),
    ),
    "workers": (
        ("main", "vllm"),
        ("worker",),
        ("app",),
        ("rank", "server"),
        ("engine_setup", "grammar", "handshake", "rank_group", "transfer"),
        ("leases", "settings", "sharding", "text"),
        ("engine", "limits", "parsers", "rank_protocol"),
    ),
    "workers.engine": (
        ("engine",),
        ("pending_handshakes", "scheduling", "step_pace", "timeouts", "tombstones"),
        ("sequences",),
        ("api",),
        ("counters",),
        ("blocks", "config", "ports"),
        ("errors",),
    ),
    "workers.rank": (
        ("main",),
        ("process", "receiver", "runner"),
        ("graphs",),
        ("loading",),
        ("in_place", "layers"),
        ("adapters", "sampling"),
        ("sequences",),
        ("cache", "grammar", "row_edits"),
        ("cpu", "distributed", "gpu"),
        ("device",),
    ),
    "workers.server": (
        ("answers", "pages"),
        ("calls",),
        ("access", "client"),
        ("identity", "metrics"),
    ),
    "workers.transfer": (
        ("rank_transfer",),
        ("agent_loop",),
        ("read_notices", "reads"),
        ("memory", "port"),
        ("nixl", "versions"),
    ),
    "workers.vllm": (
        ("connector",),
        ("in_redis", "scheduler", "worker"),
        ("leases", "messages", "presence", "side_channel", "stats"),
        (
            "agent",
            "block_layout",
            "engine_load",
            "fence",
            "handshakes",
            "loop_thread",
            "peers",
            "replay",
            "settings",
            "usable",
            "versions",
        ),
    ),
    "workers.vllm.fence": (
        ("reads",),
        ("block_reads",),
        ("transfer",),
        ("block_words", "tables"),
        ("words",),
        ("allocations", "promises"),
    ),
    "core": (
        ("net", "stores"),
        ("leases", "registry"),
        ("process", "redis_client", "ucx"),
        ("protocol",),
    ),
    "core.protocol": (
        ("openai",),
        (
            "choice",
            "client_key",
            "errors",
            "handoff",
            "hello",
            "ids",
            "steps",
            "vllm_handshake",
            "vllm_keys",
            "vllm_server",
            "worker_address",
        ),
        (
            "addresses",
            "excerpts",
            "handshake",
            "leases_at_p",
            "request_ids",
            "router",
            "scale",
            "status",
            "token_keys",
            "worker",
        ),
        ("id_syntax",),
    ),
    "core.net": (
        ("access", "error_pages", "vllm_handshakes"),
        ("client", "served"),
        ("answers", "deadlines", "known_head", "late_writes", "sockets", "tls"),
    ),
}


def picture() -> str:
    """The rows as text."""
    drawn = []
    for package, rows in LAYERS.items():
        drawn.append(f"{package.replace('.', '/')}/" if package else "the project")
        drawn += [f"    {'   '.join(row)}" for row in rows]
        drawn.append("")
    return "\n".join(drawn).rstrip()


if __name__ == "__main__":
    print(picture())
