"""Settings of the router."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from baton_serve.core.process.settings import LOOPBACK, ProcessSettings, whole_path
from baton_serve.core.protocol.addresses import is_host, page_origin
from baton_serve.core.protocol.vllm_keys import VllmKeys
from baton_serve.core.protocol.worker_address import WorkerAddress, check_once, worker_address
from baton_serve.router.pool.breaker import BREAKER_FAILURES
from baton_serve.router.queue.priorities import PriorityClasses
from baton_serve.router.upstream.events import MAX_EVENT_BYTES

_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


class RouterSettings(ProcessSettings):
    """One router process. Times are seconds unless a name ends in ``_ms``; sizes are bytes."""

    section: ClassVar[str] = "router"

    # Constants, as those of ``ProcessSettings``:

    #: Seconds between two look-ups of the host names of vLLM addresses: a name with several addresses is a worker for
    #: each.
    dns_interval_s: ClassVar[float] = 5.0
    #: Milliseconds between two questions to a vLLM server about its load; it reports nothing by itself.
    vllm_poll_interval_ms: ClassVar[int] = 500
    #: Bodies of requests that wait for a worker with room, bytes; the next one is answered 429.
    max_queued_bytes: ClassVar[int] = 512 << 20
    #: How long ``/ready`` waits for a first prefill worker while others could serve, seconds. A worker that does both
    #: is one. Once there has been one, ``/ready`` does not wait again.
    ready_prefill_wait_s: ClassVar[float] = 120.0
    #: Prefill workers tried for one request, and decode workers tried for one prefill.
    max_prefill_attempts: ClassVar[int] = 3
    max_decode_attempts: ClassVar[int] = 3
    #: Retries a second that are allowed beside ``retry_budget_fraction``, however few requests come: what moves the
    #: streams of a worker that died.
    retry_budget_floor_per_s: ClassVar[float] = 50.0
    #: Failures in a row after which a worker is given no requests while there are others, until it has answered a probe
    #: and a request.
    breaker_failures: ClassVar[int] = BREAKER_FAILURES

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description=(
            "Redis with the leases and the registry: a URL with redis://, rediss:// (or valkey://, valkeys://), "
            "unix:// or redis+sentinel://host,host/primary. Empty: no Redis, only the "
            "workers of --prefill and --decode; Baton's own among them have no leases renewed. If nobody sets it, and "
            "--prefill and --decode name vLLM servers only, for both legs, it is empty."
        ),
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP API; 0 lets the system choose.")
    tls_certificate_file: Path | None = Field(
        None, description="Certificate (PEM, with its chain) of this port; then it speaks TLS only. It needs its key."
    )
    tls_key_file: Path | None = Field(None, description="Private key of that certificate (PEM).")
    internal_host: str | None = Field(
        None,
        description="Address of the port for other routers. Default: the same as host where there is an internal "
        "token, else 127.0.0.1.",
    )
    internal_port: int = Field(
        0, ge=0, le=65535, description="Port for other routers; 0 lets the system choose. Not opened without Redis."
    )
    advertise_host: str | None = Field(
        None,
        description="Host name or address at which other routers reach this one. "
        "Default: the address listened on, or this machine's name where that means all addresses.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Router processes on this port, each with a share of the connections; more than one need Redis.",
    )
    group: str = Field(
        "",
        pattern=r"^[0-9a-f]*$",
        description="Random id that the processes of one port have in common, given by their parent.",
    )
    missing_file: Path | None = Field(
        None, description="File in which baton up says which of its workers do not serve: a JSON list of names."
    )
    prefill: tuple[str, ...] = Field(
        (),
        description=(
            "Addresses of prefill workers that are not in the registry: base URLs, or vllm+http(s)://host:port for "
            "vLLM servers, with ?side_channel=PORT (or HOST:PORT) and &max_num_seqs=N where it has other than vLLM's "
            "defaults, &handshake=PORT where it answers handshakes with the internal token, and &name=NAME."
        ),
    )
    decode: tuple[str, ...] = Field(
        (),
        description="Addresses of decode workers that are not in the registry. One in both lists does both legs.",
    )
    vllm_api_keys: tuple[SecretStr, ...] = Field(
        (),
        description="Keys of vLLM servers that were started with --api-key: KEY for all, http(s)://host:port=KEY for "
        "one. baton up starts its servers with the one for all.",
    )
    trust_static_workers: bool = Field(
        False, description="The workers of prefill and decode are Baton's own: send them the internal token."
    )

    admin_token: SecretStr | None = Field(
        None, description="Secret for /admin. Without it /admin is served only while the host is a loopback address."
    )
    api_keys: tuple[SecretStr, ...] = Field((), description="Keys that clients may use; empty: no key is asked for.")
    allow_anonymous: bool = Field(
        False, description="Serve clients without API keys even though the host is not a loopback address."
    )

    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins (scheme://host:port) of other sites' pages that may use /v1 in a browser; empty: none. "
        "*: all, which needs api_keys.",
    )

    lease_renew_interval_ms: int = Field(
        1500, ge=1, description="Milliseconds between two renewals; at most half of lease_duration_ms."
    )

    vllm_lease_duration_s: int = Field(
        30,
        ge=3,
        le=3600,
        description=(
            "Seconds that a vLLM prefill worker keeps blocks after a prefill: kv_lease_duration in its "
            "kv_connector_extra_config. Not more than the smallest one of all; vLLM does not tell."
        ),
    )

    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest life of a request, seconds; a client lowers it with x-request-timeout."
    )
    prefill_timeout_s: float = Field(300.0, gt=0, description="Longest wait for a prefill worker's answer, seconds.")
    held_timeout_s: float = Field(
        120.0, gt=0, description="Longest wait for a worker with room, a prefill or a decode worker, seconds each."
    )
    first_byte_timeout_s: float = Field(
        30.0,
        gt=0,
        description=(
            "Longest wait for a decode worker to read the blocks and, in a stream, to send its first byte, seconds; "
            "then another one is tried."
        ),
    )
    token_timeout_s: float = Field(
        60.0,
        gt=0,
        description=(
            "Longest silence of a decode worker inside its answer, seconds; then another one goes on. Comments of a "
            "vLLM server, which keep connections alive, are silence. While an answer "
            "that is not streamed is computed, what counts is that the worker announces itself or answers /health."
        ),
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="On SIGTERM, how long running requests may go on before they are aborted, seconds."
    )
    keep_alive_s: int = Field(75, ge=1, description="Idle time after which a client's connection closes, seconds.")

    max_answer_bytes: int = Field(
        64 << 20,
        gt=0,
        description=(
            "Largest unstreamed answer of a worker, and largest prompt with which a stream begins (echo), bytes; a "
            "larger one is a 502, code answer_too_large."
        ),
    )
    max_event_bytes: int = Field(
        MAX_EVENT_BYTES,
        ge=1024,
        description="Largest event of a worker's stream, bytes; a larger one ends it with the error event_too_large.",
    )
    max_queue_length: int = Field(
        4096, ge=1, description="Requests that may wait for a worker with room; the next one is answered 429."
    )
    priority_classes: tuple[str, ...] = Field(
        ("high=-10", "normal=0", "low=10"),
        description=(
            "Names for priorities, each name=number from -1000 to 1000, lower is more urgent: what the header "
            "x-baton-priority may say, and how the metrics group waiting requests."
        ),
    )
    client_priority: Literal["ignore", "lower_only", "trusted"] = Field(
        "lower_only",
        description=(
            "What a client's priority does, in the body or in x-baton-priority: ignore (nothing), lower_only (it makes "
            "a request less urgent than 0, never more urgent) or trusted (for a gateway that sets it)."
        ),
    )
    max_requests: int = Field(16384, ge=1, description="Requests in any state; the next one is answered 429.")
    max_choices: int = Field(
        128,
        ge=1,
        le=65536,
        description=(
            "Answers that one request may ask for: n, or best_of, times the number of its prompts. Each counts as a "
            "request in max_requests."
        ),
    )
    default_max_in_flight: int = Field(
        1024, ge=1, description="Requests at once on a worker that does not report how many it runs."
    )
    max_resumes: int = Field(
        3, ge=0, le=16, description="Times that another worker continues a stream that broke; 0: never."
    )
    max_worker_deaths: int = Field(
        2,
        ge=1,
        le=16,
        description=(
            "A request fails when so many workers have died, or broken the connection, with it: it may be what kills "
            "them. Deaths that a stream has left well behind with other workers do not count."
        ),
    )
    retry_budget_fraction: float = Field(
        0.2,
        ge=0,
        description=(
            "Of the requests that came in the last ten seconds, how many may be tried again in that time, all requests "
            "together, beside 50 a second; beyond that a request fails with the error it met."
        ),
    )
    max_leased_fraction: float = Field(
        0.7,
        gt=0,
        le=1,
        description=(
            "A prefill worker with a larger share of its KV blocks under leases, waiting for decode workers, is sent "
            "no new prompts; they wait in the router."
        ),
    )
    min_prefill_tokens: int = Field(
        0,
        ge=0,
        description=(
            "A shorter prompt, as estimated in tokens, skips the prefill worker if a decode worker has room: that one "
            "prefills it, which delays the tokens of what it decodes. 0: none does."
        ),
    )
    min_uncached_tokens: int = Field(
        0,
        ge=0,
        description=(
            "A prompt of which a decode worker with room lacks fewer tokens, as pick_decode=affinity expects, skips "
            "the prefill worker and goes there. 0: none does."
        ),
    )
    pick_prefill: Literal["least_loaded", "round_robin", "two_choices", "prefix"] = Field(
        "prefix",
        description=(
            "Which prefill worker is next: least_loaded, round_robin, two_choices (the less loaded of two random ones) "
            "or prefix (the one that was sent the prompt's beginning before, unless it is much busier than others)."
        ),
    )
    pick_decode: Literal["least_loaded", "round_robin", "two_choices", "affinity"] = Field(
        "affinity",
        description=(
            "Which decode worker is next: least_loaded, round_robin, two_choices or "
            "affinity (the one that decoded the conversation's earlier turn, unless it is much busier than others)."
        ),
    )

    log_requests: bool = Field(False, description="One log line at the end of every request; costs 20 to 30 % of CPU.")

    @field_validator("priority_classes")
    @classmethod
    def _classes(cls, pairs: tuple[str, ...]) -> tuple[str, ...]:
        PriorityClasses(pairs)
        return pairs

    @field_validator("prefill", "decode")
    @classmethod
    def _urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(worker_address(url).text for url in urls)

    @field_validator("vllm_api_keys")
    @classmethod
    def _vllm_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        VllmKeys(keys)
        return keys

    @field_validator("tls_certificate_file", "tls_key_file")
    @classmethod
    def _whole_tls_paths(cls, path: Path | None) -> Path | None:
        return whole_path(path)

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(page_origin(url) for url in urls)

    @model_validator(mode="after")
    def _vllm_alone_needs_no_redis(self) -> Self:
        if "redis_url" not in self.model_fields_set and self.redis_password is None and self._is_vllm_alone():
            object.__setattr__(self, "redis_url", "")  # the model is frozen, but not yet in use
        return self

    def _is_vllm_alone(self) -> bool:
        addresses = self.prefill_addresses + self.decode_addresses
        return all(address.is_vllm for address in addresses) and bool(self.prefill and self.decode)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host and not is_host(self.host):
            raise ValueError(f"host {self.host} is neither a name nor an IP address")
        if self.host not in LOOPBACK and not self.api_keys and not self.allow_anonymous:
            raise ValueError(
                f"host {self.host} is not a loopback address: set api_keys, or allow_anonymous to serve everybody"
            )
        if (self.tls_certificate_file is None) is not (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file go together")
        if self.speaks_internal_tls and any(map(_is_plain, (*self.prefill, *self.decode))):
            raise ValueError(
                "prefill and decode need https:// or vllm+https:// URLs where there is an internal_tls_certificate_file"
            )
        if "*" in self.cors_origins and not self.api_keys:
            raise ValueError("cors_origins * needs api_keys: else every page that somebody here looks at may use /v1")
        if not self.redis_url and not (self.prefill and self.decode):
            raise ValueError("without redis_url both prefill and decode need a URL")
        if not self.redis_url and self.processes > 1:
            raise ValueError("processes above 1 needs redis_url: without it they would not know of each other")
        if self.internal_port and self.processes > 1:
            raise ValueError("internal_port must be 0 with several processes: each has a port of its own")
        if self.internal_token is None and self.bound_internal_host not in LOOPBACK:
            raise ValueError("internal_host is not a loopback address: that needs an internal_token")
        if self.lease_renew_interval_ms * 2 > self.lease_duration_ms:
            raise ValueError("lease_renew_interval_ms must be at most half of lease_duration_ms")
        check_once(self.prefill_addresses + self.decode_addresses)
        if self.min_uncached_tokens and self.pick_decode != "affinity":
            raise ValueError("min_uncached_tokens needs pick_decode=affinity, which knows what decode workers have")
        return self

    @property
    def speaks_tls(self) -> bool:
        """Whether the port for clients speaks TLS."""
        return self.tls_certificate_file is not None

    @property
    def prefill_addresses(self) -> tuple[WorkerAddress, ...]:
        """``prefill``, parsed."""
        return tuple(map(worker_address, self.prefill))

    @property
    def decode_addresses(self) -> tuple[WorkerAddress, ...]:
        """``decode``, parsed."""
        return tuple(map(worker_address, self.decode))

    @property
    def bound_internal_host(self) -> str:
        """Address on which the internal port listens."""
        if self.internal_host is not None:
            return self.internal_host
        return "127.0.0.1" if self.internal_token is None else self.host

    def advertised(self, bound: str) -> str:
        """The host under which other routers reach a port that is bound to ``bound``."""
        if self.advertise_host is not None and bound not in LOOPBACK:
            return self.advertise_host
        return socket.gethostname() if bound in _ANY_ADDRESS else bound

    @property
    def serves_admin(self) -> bool:
        """Whether ``/admin`` is served: a token guards it, or only this machine can connect."""
        return self.admin_token is not None or self.host in LOOPBACK


def _is_plain(address: str) -> bool:
    return not worker_address(address).speaks_tls
