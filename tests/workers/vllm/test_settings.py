"""Where the connector's Redis is, as the environment of a vLLM server says."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.vllm.settings import ConnectorSettings
from workers.vllm.versions import UnknownVersionError, check_version


def login(monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    for name in ("REDIS_URL", "REDIS_URL_FILE", "REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "REDIS_GRACE_MS"):
        monkeypatch.delenv(f"BATON_{name}", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(f"BATON_{name}", value)
    return ConnectorSettings().redis_login()


def test_a_password_goes_into_the_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert login(monkeypatch) == login(monkeypatch, REDIS_URL="") == ""
    assert login(monkeypatch, REDIS_URL="redis://r:1/0") == "redis://r:1/0"
    assert login(monkeypatch, REDIS_URL="redis://r:1/0", REDIS_PASSWORD="open") == "redis://:open@r:1/0"
    secret, url = tmp_path / "secret", tmp_path / "url"
    secret.write_text("open\n")
    url.write_text("redis://r:1/0\n")
    assert (
        login(monkeypatch, REDIS_URL_FILE=str(url), REDIS_PASSWORD_FILE=str(secret))
        == login(monkeypatch, REDIS_URL_FILE=str(url), REDIS_PASSWORD="open")
        == "redis://:open@r:1/0"
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"REDIS_URL": "http://r"},
        {"REDIS_URL": "redis://:sesame@r", "REDIS_PASSWORD": "sesame"},
        {"REDIS_PASSWORD": "sesame"},
        {"REDIS_URL": "redis://:sesame@r", "REDIS_URL_FILE": "/x"},
        {"REDIS_GRACE_MS": "-1"},
    ],
)
def test_what_cannot_work_is_refused_without_a_secret(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    with pytest.raises(ValueError) as caught:
        login(monkeypatch, **environ)
    assert "sesame" not in str(caught.value)


def test_only_versions_that_were_run_are_taken() -> None:
    check_version("0.32.0")
    check_version("0.32.0+cpu")
    for version in ("0.31.9", "0.32.1", "0.33.0", "dev"):
        with pytest.raises(UnknownVersionError, match=f"made for vLLM 0.32.0 and this is {version}"):
            check_version(version)
