"""The connector's own settings. The variables are those of Baton's other processes.

They are in the environment, because vLLM logs what ``--kv-transfer-config`` says, and a Redis URL may hold a password.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.protocol.addresses import check_redis_url, has_password, with_password


class ConnectorSettings(BaseSettings):
    """Raises pydantic's ValidationError, which shows no values."""

    model_config = SettingsConfigDict(env_prefix="BATON_", frozen=True, hide_input_in_errors=True)

    redis_url: str = Field("", repr=False, description="Redis with the leases. Empty: leases are vLLM's own.")
    redis_url_file: Path | None = Field(None, description="A file that holds redis_url.")
    redis_password: SecretStr | None = Field(None, description="Password, where redis_url has none.")
    redis_password_file: Path | None = Field(None, description="A file that holds redis_password.")
    redis_grace_ms: int = Field(60_000, ge=0, description="Milliseconds that P keeps leased blocks without Redis.")

    @field_validator("redis_url")
    @classmethod
    def _redis_url_is_usable(cls, url: str) -> str:
        return check_redis_url(url) if url else url

    @model_validator(mode="after")
    def _each_is_given_once(self) -> Self:
        if (self.redis_url and self.redis_url_file) or (self.redis_password and self.redis_password_file):
            raise ValueError("a setting is given by its variable or by the one of its file, not by both")
        return self

    @classmethod
    def variables(cls) -> frozenset[str]:
        """The variables of the environment that are read."""
        return frozenset(f"{cls.model_config['env_prefix']}{name}".upper() for name in cls.model_fields)

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


def _read(path: Path) -> str:
    return path.read_text().strip()
