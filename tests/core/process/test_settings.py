"""What every process checks in its settings: secrets that are some, addresses that could be reached."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from redis.connection import parse_url

from baton_serve.baton.config.configuration import ConfigurationError, Document, load
from baton_serve.baton.settings import UpSettings
from baton_serve.core.process.settings import ProcessSettings, Settings
from baton_serve.core.protocol.addresses import check_redis_url, worker_url
from baton_serve.router.settings import RouterSettings
from baton_serve.workers.settings import WorkerSettings

USELESS = ["", " ", "a b", " padded", "tab\t", "line\n", "naïve", "\x7f"]
PUBLIC = {"host": "0.0.0.0", "allow_anonymous": True}


@pytest.mark.parametrize("secret", USELESS)
@pytest.mark.parametrize(
    ("model", "name", "others"),
    [
        (RouterSettings, "admin_token", PUBLIC),
        (RouterSettings, "internal_token", {}),
        (RouterSettings, "api_keys", {}),
        (WorkerSettings, "internal_token", {"model": "m", "host": "0.0.0.0"}),
        (UpSettings, "internal_token", {}),
    ],
)
def test_an_unusable_secret_is_refused(model: type[Settings], name: str, others: Any, secret: str) -> None:
    value = ["fine", secret] if name == "api_keys" else secret
    with pytest.raises(ValidationError, match="a secret is printable ASCII") as caught:
        model.model_validate({**others, name: value})
    assert secret.strip() == "" or secret not in str(caught.value)


@pytest.mark.parametrize("place", ["flag", "file"])
def test_an_unusable_secret_is_refused_wherever_it_is_written(place: str) -> None:
    flags = {"admin_token": "open sesame"} if place == "flag" else {}
    sections = {"router": {"admin_token": "open sesame"}} if place == "file" else {}
    with pytest.raises(ConfigurationError) as caught:
        load(RouterSettings, flags, {}, Document("c.yaml", sections))
    (problem,) = caught.value.problems
    assert "admin" in problem and "sesame" not in problem


@pytest.mark.parametrize(
    "url",
    ["redis://h", "redis://h:1/0", "rediss://u:p%20w@10.0.0.1:6380/3?ssl_cert_reqs=none", "redis://[::1]:6379/",
     "unix:///run/redis.sock", "unix:///run/redis.sock?db=0"],
)  # fmt: skip
def test_valid_redis_urls_are_taken_as_they_are(url: str) -> None:
    assert check_redis_url(url) == url
    assert ProcessSettings(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    "url",
    ["sesame", "sesame:6379", "http://sesame", "redis://", "redis://:sesame@", "redis://h:sesame", "redis://h:0",
     "redis://h:65536", "redis://sesame..b", "redis://h/sesame", "redis://:sesa/me@h/0", "unix://", "redis://se same",
     "redis://[sesame", "redis://h:"],
)  # fmt: skip
def test_malformed_redis_urls_are_refused_and_not_repeated(url: str) -> None:
    for model in (RouterSettings, UpSettings):
        with pytest.raises(ValidationError, match="redis_url") as caught:
            model.model_validate({"redis_url": url})
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("redis://h", None),
        ("redis://h:1/3", None),
        ("redis://baton@h:1/3", "baton"),
        ("rediss://h?ssl_cert_reqs=none", None),
        ("redis://[::1]:6379/", None),
        ("unix:///run/redis.sock?db=1", None),
    ],
)
@pytest.mark.parametrize("password", ["sesame", ":@/?#%25", "p,w"])
def test_the_password_of_redis_may_be_beside_its_url(url: str, user: str | None, password: str) -> None:
    for model in (RouterSettings(redis_url=url, redis_password=password), ProcessSettings(redis_url=url)):
        expected = dict(parse_url(url))
        if model.redis_password is not None:
            expected["password"] = password
        assert (dict(parse_url(model.redis_login)), expected.get("username")) == (expected, user)
        assert password not in repr(model)


@pytest.mark.parametrize("url", ["redis://:sesame@h", "redis://u:sesame@h", "redis://h/0?password=sesame"])
@pytest.mark.parametrize("model", [RouterSettings, UpSettings])
def test_a_second_password_for_redis_is_refused(model: type[Settings], url: str) -> None:
    with pytest.raises(ValidationError, match="redis_url has a password already") as caught:
        model.model_validate({"redis_url": url, "redis_password": "open"})
    assert "sesame" not in str(caught.value) and "open" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "others"), [(UpSettings, {}), (RouterSettings, {"redis_url": "", "prefill": ["h:1"], "decode": ["h:2"]})]
)
def test_a_password_without_a_redis_is_refused(model: type[Settings], others: Any) -> None:
    with pytest.raises(ValidationError, match="redis_password needs redis_url"):
        model.model_validate({**others, "redis_password": "open"})


def test_only_processes_that_can_do_without_redis_take_an_empty_url() -> None:
    assert RouterSettings(redis_url="", prefill=("h:1",), decode=("h:2",)).redis_url == ""
    with pytest.raises(ValidationError):
        UpSettings(redis_url="")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("h:1", "http://h:1"),
        ("h", "http://h"),
        ("some_container:8100", "http://some_container:8100"),
        ("[::1]:80/", "http://[::1]:80"),
        ("https://d.example.org./base/", "https://d.example.org./base"),
    ],
)
def test_worker_addresses_become_urls(address: str, url: str) -> None:
    assert worker_url(address) == url


@pytest.mark.parametrize(
    "address",
    ["", "h:99999", "h:0", "h:", "h:x", "a..b", "-h:1", "h/?q", "h/#f", "u:p@h:1", "ftp://h", "http://", "h h", "h\n",
     "[::1", "[::1]x", "[::1]x:80", "[h]:80", "ü:1", "a" * 64],
)  # fmt: skip
def test_malformed_worker_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError):
        worker_url(address)
    with pytest.raises(ValidationError, match="prefill"):
        RouterSettings.model_validate({"prefill": [address]})
