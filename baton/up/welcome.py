"""The screen that ``baton up`` shows when it serves, and the question to the router for the model's name."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from baton_serve.core.net.tls import own_certificate_context
from baton_serve.router.settings import RouterSettings

#: The router learns of workers through the registry, a moment after they report that they are ready. It has no way to
#: notify ``baton up`` of that, so it is asked at most this many times, with these pauses.
MODEL_ATTEMPTS = 100
MODEL_RETRY_S = 0.1
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Service:
    """What a person needs to know about the running service."""

    url: str
    model: str
    num_prefill: int
    num_decode: int
    log_dir: Path
    router: RouterSettings
    #: One line for each worker that is not up: its name and why.
    missing: tuple[str, ...] = ()
    #: What a prefill worker and a decode worker are called.
    names: tuple[str, str] = ("prefill worker", "decode worker")
    #: Whether ``baton scale`` works.
    scales: bool = True
    #: The file with the admin token that ``baton up`` has made; None: there is no such file.
    token_file: Path | None = None


async def first_model(url: str, settings: RouterSettings) -> str:
    """The name of the model that the router serves; empty when it knows none after a while."""
    certificate = settings.tls_certificate_file
    # A context of its own in any case: loading the authorities of this machine takes longer than everything else.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if certificate is None else own_certificate_context(certificate)
    headers = {"Authorization": f"Bearer {settings.api_keys[0].get_secret_value()}"} if settings.api_keys else {}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False, verify=tls
    ) as http:
        for _ in range(MODEL_ATTEMPTS):
            if name := await _ask_model(http):
                return name
            await asyncio.sleep(MODEL_RETRY_S)
    return ""


def welcome(service: Service, shown_token: str = "") -> str:
    """The screen, as plain text that can be pasted from. ``shown_token``: the admin token for a link to the dashboard,
    behind the "#", which browsers send to nobody.
    """
    url = service.url
    question = {"role": "user", "content": "What is Baton?"}
    body = json.dumps({"model": service.model, "messages": [question], "stream": True})
    cacert = f" --cacert {service.router.tls_certificate_file}" if service.router.tls_certificate_file else ""
    key = ' -H "Authorization: Bearer <API key>"' if service.router.api_keys else ""
    return "\n".join(
        [
            "",
            f"Baton serves {service.model or 'no model yet'} on {url}/v1",
            f"with {_count(service.num_prefill, service.names[0])} and {_count(service.num_decode, service.names[1])}",
            *(f"not up yet, and tried again from time to time: {line}" for line in service.missing),
            "",
            f"  curl{cacert} -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
            f"    -d {shlex.quote(body)}",
            "",
            f"  web    {url}/   (dashboard, API reference)",
            *([f"         {url}/dashboard#token={shown_token}   (for you alone)"] if shown_token else []),
            f"  admin  {_admin(service, cacert)}",
            f"  logs   {service.log_dir}",
            *_scale_line(service),
            "  stop   Ctrl-C",
            "",
        ]
    )


def _admin(service: Service, cacert: str) -> str:
    if service.token_file is not None:
        ca = cacert.replace("--cacert", "--ca-file")
        return (
            f"{command_name()} workers --url {service.url}{ca}   (for you alone: its token is in {service.token_file})"
        )
    if service.router.serves_admin:
        return f'curl{cacert} {service.url}/admin/requests -H "Authorization: Bearer $BATON_ADMIN_TOKEN"'
    return "off; set BATON_ADMIN_TOKEN to serve /admin"


def _scale_line(service: Service) -> list[str]:
    if not service.scales:
        return []
    return [f"  scale  {command_name()} scale --url {service.url} prefill={_wanted(service) + 1}"]


def command_name() -> str:
    """What a person types to run this ``baton``: the name, or the path if the name would not find this one."""
    own = Path(sys.executable).with_name("baton")
    found = shutil.which("baton")
    if not own.exists() or (found is not None and Path(found).resolve() == own.resolve()):
        return "baton"
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def _wanted(service: Service) -> int:
    """How many prefill workers there should be: those that serve and those that are not up."""
    return service.num_prefill + sum(line.startswith("prefill-") for line in service.missing)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def first_of(cards: list[dict[str, object]]) -> str:
    """The name of the first model that is no adapter; empty if there is none."""
    return next((str(card["id"]) for card in cards if not card.get("parent")), "")


async def _ask_model(http: httpx.AsyncClient) -> str:
    """The name of the first model that is no adapter; empty while the router knows none or does not answer."""
    try:
        answer = await http.get("/v1/models")
        return first_of(answer.json()["data"]) if answer.status_code == httpx.codes.OK else ""
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        return ""
