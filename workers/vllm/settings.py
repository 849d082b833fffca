"""The connector's own settings. The variables are those of Baton's other processes.

They are in the environment, because vLLM logs what ``--kv-transfer-config`` says, and a Redis URL may hold a password.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton_serve.core.protocol.addresses import check_redis_url, has_password, with_password, worker_url
from baton_serve.core.protocol.token_keys import announcement_key, vllm_handshake_key

#: The port of handshakes over HTTP, where none is given, is so far above that of the side channel.
HANDSHAKE_PORT_STEP = 1000


class ConnectorSettings(BaseSettings):
    """Raises pydantic's ValidationError, which shows no values."""

    model_config = SettingsConfigDict(
        env_prefix="BATON_", env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

    redis_url: str = Field("", repr=False, description="Redis with leases and registry. Empty: leases are vLLM's own.")
    redis_url_file: Path | None = Field(None, description="A file that holds redis_url.")
    redis_password: SecretStr | None = Field(None, description="Password, where redis_url has none.")
    redis_password_file: Path | None = Field(None, description="A file that holds redis_password.")
    redis_grace_ms: int = Field(60_000, ge=0, description="Milliseconds that P keeps leased blocks without Redis.")
    announce_url: str = Field("", description="URL of this server for routers. Empty: it does not announce itself.")
    internal_token: SecretStr | None = Field(
        None,
        description="Secret of routers and workers. It signs announcements, and handshakes go over HTTP with it.",
    )
    internal_token_file: Path | None = Field(None, description="A file that holds internal_token.")
    handshake_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port for handshakes over HTTP; each data-parallel rank has the next one. Default: 1000 above "
        "VLLM_NIXL_SIDE_CHANNEL_PORT.",
    )
    side_channel: Literal["open", "closed"] = Field(
        "open", description="closed: vLLM's side channel is neither opened nor asked, so all peers need the token."
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_url_is_usable(cls, url: str) -> str:
        return check_redis_url(url) if url else url

    @field_validator("announce_url")
    @classmethod
    def _announce_url_is_usable(cls, url: str) -> str:
        if url and "://" not in url:
            raise ValueError("announce_url is http(s)://host:port")
        return worker_url(url) if url else url

    @model_validator(mode="after")
    def _each_is_given_once(self) -> Self:
        names = "redis_url", "redis_password", "internal_token"
        if any(getattr(self, name) and getattr(self, f"{name}_file") for name in names):
            raise ValueError("a setting is given by its variable or by the one of its file, not by both")
        return self

    @model_validator(mode="after")
    def _closed_needs_a_token(self) -> Self:
        if self.is_side_channel_closed and not (self.internal_token or self.internal_token_file):
            raise ValueError("BATON_SIDE_CHANNEL=closed needs BATON_INTERNAL_TOKEN or BATON_INTERNAL_TOKEN_FILE")
        return self

    @property
    def is_side_channel_closed(self) -> bool:
        """Whether the side channel is neither opened nor asked."""
        return self.side_channel == "closed"

    @classmethod
    def variables(cls) -> frozenset[str]:
        """The variables of the environment that are read."""
        return frozenset(f"{cls.model_config['env_prefix']}{name}".upper() for name in cls.model_fields)

    @classmethod
    def unknown(cls, environ: Iterable[str]) -> list[str]:
        """Variables that look like Baton's and are not read here: another process's, or misspelled."""
        prefix = str(cls.model_config["env_prefix"])
        return sorted(name for name in environ if name.startswith(prefix) and name not in cls.variables())

    def redis_login(self) -> str:
        """The URL for a Redis client; empty without Redis. Raises OSError and ValueError."""
        url = self.redis_url if self.redis_url_file is None else check_redis_url(_read(self.redis_url_file))
        password = None if self.redis_password is None else self.redis_password.get_secret_value()
        if self.redis_password_file is not None:
            password = _read(self.redis_password_file)
        if password is None:
            return url
        if not url or has_password(url):
            raise ValueError("redis_password needs a redis_url without one")
        return with_password(url, password)

    def announcement_key(self) -> bytes | None:
        """Signs announcements; None without a token. Raises OSError and ValueError."""
        token = self._token()
        return announcement_key(token) if token else None

    def handshake_key(self) -> bytes | None:
        """The key of the proofs in handshakes; None without a token. Raises OSError and ValueError."""
        token = self._token()
        return vllm_handshake_key(token) if token else None

    def _token(self) -> str:
        """The internal token; empty: there is none."""
        if self.internal_token_file is not None:
            token = _read(self.internal_token_file)
        elif self.internal_token:
            token = self.internal_token.get_secret_value()
        else:
            return ""
        if not token or not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the internal token is printable ASCII without spaces, and not empty")
        return token

    def port_of_handshakes(self, side_channel_port: int, dp_index: int) -> int:
        """The port of one data-parallel rank, whose own side channel port is given. Raises ValueError."""
        port = side_channel_port + HANDSHAKE_PORT_STEP
        if self.handshake_port is not None:
            port = self.handshake_port + dp_index
        if port > 65535:
            raise ValueError(f"there is no port {port}: set BATON_HANDSHAKE_PORT to a lower one")
        return port


def _read(path: Path) -> str:
    return path.read_text().strip()
