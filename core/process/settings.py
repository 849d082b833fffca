"""How settings are declared. Every process has one frozen model; everything else is generated from it.

A setting is one annotated field with a description that says its unit. From the field come, by rule:

- the flag ``--kv-block-size`` (``kv_block_size``; a bool gives ``--x`` and ``--no-x``; a tuple is comma-separated,
  or the flag is given several times),
- the environment variable ``BATON_<SECTION>_KV_BLOCK_SIZE``, or ``BATON_<NAME>`` for the names in ``SHARED``,
  and for the names in ``SECRET`` also ``..._FILE``, the path of a file that holds the value,
- the key ``kv_block_size`` in the section of that process (or in ``shared:``) of the one YAML file,
- the line in ``--help``.

A flag wins over the environment, the environment over the file, the file over the default. Reading all of these is the
command line's work (``baton/config``); code and tests just construct a model: ``WorkerSettings(role="prefill")``.

    class WorkerSettings(ProcessSettings):
        section = "worker"
        port: int = Field(8100, ge=0, le=65535, description="Port of the HTTP API; 0 lets the system choose.")

A process is started by ``<package>.main.run(settings) -> int`` (the exit code), called once in a fresh process.
``check`` in a model (a pydantic validator) raises ``ValueError`` with one sentence that never repeats a secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from baton_serve.core.protocol.addresses import check_redis_url, has_password, own_host, with_password
from baton_serve.core.protocol.openai.json_body import MAX_STOP_STRINGS, MORE_NODES, NODES_PER_MESSAGE, BodyLimits

#: Settings whose value is never shown, neither in help nor in errors.
SECRET = frozenset({"redis_url", "redis_password", "internal_token", "admin_token", "api_keys", "vllm_api_keys"})
#: Settings that mean the same in every process, so that the file gives them once for all; every secret is one.
SHARED = SECRET | {
    *("internal_tls_certificate_file", "internal_tls_key_file", "internal_ca_file", "internal_tls_name"),
    *("lease_duration_ms", "redis_grace_ms", "max_body_bytes", "max_messages", "max_stop_strings"),
    *("allowed_hosts", "log_level", "log_format"),
}
#: Settings that only a parent process sets; not shown in help.
HIDDEN = frozenset({"status_fd", "group", "missing_file"})

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Settings(BaseSettings):
    """Base of all settings models."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    #: Name of the section in the YAML file; in upper case, it is part of the environment variables' names.
    section: ClassVar[str]
    #: Whether ``redis_url`` may be empty.
    works_without_redis: ClassVar[bool] = False

    @field_validator("*")
    @classmethod
    def _secrets_are_usable(cls, value: Any) -> Any:
        """Refuse an empty secret, which anyone could guess, and one that a header cannot carry."""
        for secret in value if isinstance(value, tuple) else (value,):
            if isinstance(secret, SecretStr) and not _is_usable(secret.get_secret_value()):
                raise ValueError("a secret is printable ASCII without spaces, and not empty")
        return value

    @field_validator("redis_url", check_fields=False)
    @classmethod
    def _redis_url_is_usable(cls, url: str | None) -> str | None:
        if url is None or (url == "" and cls.works_without_redis):
            return url
        return check_redis_url(url)

    @model_validator(mode="after")
    def _redis_has_one_password(self) -> Self:
        url, password = getattr(self, "redis_url", None), getattr(self, "redis_password", None)
        if password is None:
            return self
        if not url:
            raise ValueError("redis_password needs redis_url")
        if has_password(url):
            raise ValueError("redis_url has a password already: leave it out there, or unset redis_password")
        return self

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the caller's arguments. The command line has its own sources (``baton/config``)."""
        return (init_settings,)


class ProcessSettings(Settings):
    """The settings that routers and workers have in common."""

    works_without_redis: ClassVar[bool] = True

    # Constants, for no installation has needed other values:

    #: Values in one body: a prompt of token ids has one for each token.
    max_json_values: ClassVar[int] = 2**20
    #: Longest wait for the whole body of a request, seconds; then it is answered 408.
    body_timeout_s: ClassVar[float] = 60.0
    #: Longest time that a client may take nothing of its answer, seconds; then the connection is closed, and its
    #: request ends. A worker's answer to a router ends by the router's ``request_timeout_s`` instead.
    unread_timeout_s: ClassVar[float] = 60.0

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description=(
            "Redis with the leases and the registry: a URL with redis://, rediss:// (or valkey://, valkeys://), "
            "unix:// or redis+sentinel://host,host/primary."
        ),
    )
    redis_password: SecretStr | None = Field(
        None, description="Password of that Redis, where redis_url does not have it."
    )
    internal_token: SecretStr | None = Field(
        None,
        description="Secret between router and workers. Without it everything binds to loopback only.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names (or addresses) that requests may ask under where no token guards a path, beside those of "
        "this machine: what a proxy in front is called. They are what the Host header says; *: any.",
    )
    internal_tls_certificate_file: Path | None = Field(
        None,
        description="Certificate (PEM, with its chain) of this process for TLS between routers and workers; with it "
        "nothing between them goes without TLS. It needs the key and the CA, too.",
    )
    internal_tls_key_file: Path | None = Field(None, description="Private key of that certificate (PEM).")
    internal_ca_file: Path | None = Field(
        None, description="CA (PEM) that has certified all routers and workers: each refuses whom it has not."
    )
    internal_tls_name: str | None = Field(
        None,
        description="Name that the certificates of all routers and workers have, for machines without names of their "
        "own. Default: a certificate must have the host that its owner is reached at.",
    )
    lease_duration_ms: int = Field(
        6000, ge=100, le=3_600_000, description="Milliseconds that a grant or a renewal holds P's blocks."
    )
    redis_grace_ms: int = Field(
        60_000, ge=0, description="Milliseconds that P keeps leased blocks while Redis cannot be reached."
    )
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="Bytes of a client's largest request body.")
    max_messages: int = Field(
        2048,
        ge=1,
        description="Messages of one chat; four times as many text parts, all messages together. The whole body may "
        f"have {NODES_PER_MESSAGE} times as many objects, arrays and keys, and {MORE_NODES} more.",
    )
    max_stop_strings: int = Field(
        MAX_STOP_STRINGS,
        ge=1,
        le=1024,
        description="Stop strings of one request to Baton's own workers, which look for each at every token.",
    )
    max_bodies_bytes: int = Field(
        2**30,
        ge=1024,
        description="Bytes of all request bodies that the process holds, each from its arrival to the end of its "
        "request; what comes on top is answered 429.",
    )
    max_connections: int | None = Field(
        None,
        ge=16,
        description="Connections to the public port. Beyond them idle ones are closed, then new ones turned away with "
        "503. Default: by how many file descriptors the process may have, 20000 at most.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level logged.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people or for machines.")
    status_fd: int | None = Field(
        None,
        ge=0,
        description="File descriptor for the status lines of core/protocol/status.py, given by a parent process.",
    )

    @field_validator("internal_tls_certificate_file", "internal_tls_key_file", "internal_ca_file")
    @classmethod
    def _whole_paths(cls, path: Path | None) -> Path | None:
        """Make the paths absolute, so that they mean the same in a child with another current directory."""
        return whole_path(path)

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        files = (self.internal_tls_certificate_file, self.internal_tls_key_file, self.internal_ca_file)
        if any(files) and not all(files):
            raise ValueError("internal_tls_certificate_file, internal_tls_key_file and internal_ca_file go together")
        if self.internal_tls_name is not None and not any(files):
            raise ValueError("internal_tls_name needs internal_tls_certificate_file")
        return self

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(own_host(name) for name in names)

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ValueError("max_bodies_bytes must not be below max_body_bytes")
        return self

    @property
    def body_limits(self) -> BodyLimits:
        """The limits of a client's body."""
        return BodyLimits(self.max_messages, self.max_json_values, max_stop_strings=self.max_stop_strings)

    @property
    def speaks_internal_tls(self) -> bool:
        """Whether TLS is set up between routers and workers."""
        return self.internal_tls_certificate_file is not None

    @property
    def redis_login(self) -> str:
        """The ``redis_url`` with the password in it, for Redis clients only; empty without Redis."""
        return redis_login(self.redis_url, self.redis_password)


def whole_path(path: Path | None) -> Path | None:
    """The absolute path. Raises ValueError for the home of an unknown user."""
    try:
        return None if path is None else path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("there is no such user's home") from None


def redis_login(url: str, password: SecretStr | None) -> str:
    """The URL for a Redis client, with the password in it if there is one."""
    return url if password is None else with_password(url, password.get_secret_value())


def _is_usable(secret: str) -> bool:
    return bool(secret) and secret.isascii() and secret.isprintable() and " " not in secret
