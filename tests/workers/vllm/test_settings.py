"""Where the connector's Redis is, as the environment of a vLLM server says."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_serve.core.protocol.token_keys import announcement_key, vllm_handshake_key
from baton_serve.workers.vllm.settings import ConnectorSettings
from baton_serve.workers.vllm.versions import UnknownVersionError, check_version


def login(monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    return given(monkeypatch, **environ).redis_login()


def given(monkeypatch: pytest.MonkeyPatch, **environ: str) -> ConnectorSettings:
    for variable in ConnectorSettings.variables():
        monkeypatch.delenv(variable, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(f"BATON_{name}", value)
    return ConnectorSettings()


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
        {"ANNOUNCE_URL": "h:1"},
        {"ANNOUNCE_URL": "http://:sesame@h:1"},
        {"INTERNAL_TOKEN": "sesame", "INTERNAL_TOKEN_FILE": "/x"},
    ],
)
def test_what_cannot_work_is_refused_without_a_secret(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    with pytest.raises(ValueError) as caught:
        login(monkeypatch, **environ)
    assert "sesame" not in str(caught.value)


def test_the_url_for_routers_and_the_key_that_signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for nothing in (given(monkeypatch), given(monkeypatch, ANNOUNCE_URL="", INTERNAL_TOKEN="")):
        assert (nothing.announce_url, nothing.announcement_key()) == ("", None)
    assert given(monkeypatch, ANNOUNCE_URL="https://h:1/").announce_url == "https://h:1"
    secret = tmp_path / "secret"
    secret.write_text("open\n")
    by_file = given(monkeypatch, INTERNAL_TOKEN_FILE=str(secret))
    assert by_file.announcement_key() == announcement_key("open")
    assert given(monkeypatch, INTERNAL_TOKEN="open").announcement_key() == announcement_key("open")
    secret.write_text("\n")
    with pytest.raises(ValueError, match="not empty"):
        by_file.announcement_key()


def test_the_token_gives_the_key_of_handshakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    assert given(monkeypatch).handshake_key() is None
    by_value = given(monkeypatch, INTERNAL_TOKEN="sesame")
    assert by_value.handshake_key() == vllm_handshake_key("sesame")
    assert "sesame" not in repr(by_value)
    assert given(monkeypatch, INTERNAL_TOKEN_FILE=str(secret)).handshake_key() == vllm_handshake_key("sesame")
    for token in ("", "two words", "\u00e9"):
        secret.write_text(token)
        with pytest.raises(ValueError, match="the internal token is printable ASCII"):
            given(monkeypatch, INTERNAL_TOKEN_FILE=str(secret)).handshake_key()


@pytest.mark.parametrize(
    "environ",
    [
        {"SIDE_CHANNEL": "closed"},
        {"SIDE_CHANNEL": "shut", "INTERNAL_TOKEN": "sesame"},
        {"INTERNAL_TOKEN": "sesame", "INTERNAL_TOKEN_FILE": "/x"},
        {"HANDSHAKE_PORT": "0"},
        {"HANDSHAKE_PORT": "65536"},
    ],
)
def test_what_cannot_answer_handshakes_is_refused(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    with pytest.raises(ValueError) as caught:
        given(monkeypatch, **environ)
    assert "sesame" not in str(caught.value)
    assert ("closed needs BATON_INTERNAL_TOKEN" in str(caught.value)) == (environ == {"SIDE_CHANNEL": "closed"})


def test_the_side_channel_is_closed_only_if_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not given(monkeypatch, INTERNAL_TOKEN="sesame").is_side_channel_closed
    assert given(monkeypatch, INTERNAL_TOKEN="sesame", SIDE_CHANNEL="closed").is_side_channel_closed


def test_each_data_parallel_rank_has_a_port_for_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM adds the rank's index to the port of the side channel."""
    by_default, by_port = given(monkeypatch), given(monkeypatch, HANDSHAKE_PORT="7000")
    assert [by_default.port_of_handshakes(5600 + index, index) for index in range(3)] == [6600, 6601, 6602]
    assert [by_port.port_of_handshakes(5600 + index, index) for index in range(3)] == [7000, 7001, 7002]
    with pytest.raises(ValueError, match="set BATON_HANDSHAKE_PORT to a lower one"):
        by_default.port_of_handshakes(65000, 0)


def test_only_versions_that_were_run_are_taken() -> None:
    check_version("0.32.0")
    check_version("0.32.0+cpu")
    for version in ("0.31.9", "0.32.1", "0.33.0", "dev"):
        with pytest.raises(UnknownVersionError, match=f"made for vLLM 0.32.0 and this is {version}"):
            check_version(version)


def test_what_is_empty_is_not_set_and_what_is_unknown_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = given(monkeypatch, SIDE_CHANNEL="", HANDSHAKE_PORT="", REDIS_GRACE_MS="", REDIS_URL="", INTERNAL_TOKEN="")
    assert empty == given(monkeypatch)
    assert ConnectorSettings.unknown({"BATON_SIDE_CHANEL": "", "BATON_SIDE_CHANNEL": "", "PATH": ""}) == [
        "BATON_SIDE_CHANEL"
    ]
