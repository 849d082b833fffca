"""TLS of a port and of whom it serves, on real sockets with certificates of the documentation's commands."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import uvloop

from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.tls import (
    Files,
    InternalTls,
    Latest,
    TlsError,
    internal_tls,
    own_certificate_context,
    server_context,
)
from baton_serve.core.process.settings import ProcessSettings
from tests.kits.certificates import Authority, Certified
from tests.kits.clock import Clock
from tests.kits.port import GET, Served, serving


def files(given: Certified) -> Files:
    return Files(given.certificate, given.key, given.ca, "internal_")


def config(context: ssl.SSLContext) -> PortConfig:
    return PortConfig(keep_alive_s=5, tls=context)


async def status(served: Served, context: ssl.SSLContext, name: str = "127.0.0.1") -> int:
    """What a request is answered. Raises OSError; 0 where the connection is closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.number, ssl=context, server_hostname=name)
    try:
        writer.write(GET)
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except (ssl.SSLError, ConnectionError):  # told that its certificate was not taken
        return 0
    finally:
        writer.close()


async def test_the_certified_talk_to_each_other(authority: Authority) -> None:
    ours, theirs = InternalTls(files(authority.of("p1.internal"))), InternalTls(files(authority.of("d1.internal")))
    async with serving(config(ours.server(internal=True))) as served:
        assert await status(served, theirs.to("localhost")["ssl"]) == 200
        assert await status(served, *theirs.to("localhost").values()) == 200
    assert [scope["scheme"] for scope in served.app.scopes] == ["https", "https"]


async def test_a_client_that_is_not_certified_gets_no_further_than_the_handshake(
    authority: Authority, other_authority: Authority
) -> None:
    ours = InternalTls(files(authority.of("p1.internal")))
    stranger = other_authority.of("p1.internal")
    without = ssl.create_default_context(cafile=authority.ca)
    of_others = Files(stranger.certificate, stranger.key, authority.ca).client()
    async with serving(config(ours.server(internal=True))) as served:
        for context in (without, of_others):
            assert await status(served, context) == 0
        with pytest.raises(ssl.SSLCertVerificationError):  # nor does it send anything to us
            await status(served, files(stranger).client())
        assert served.app.scopes == []


async def test_a_workers_public_port_asks_for_no_certificate(authority: Authority) -> None:
    """Probes and scrapers have none; the token is asked for there."""
    ours = InternalTls(files(authority.of("p1.internal")))
    async with serving(config(ours.server(internal=False))) as served:
        assert await status(served, ssl.create_default_context(cafile=authority.ca)) == 200


async def test_a_name_that_is_not_in_the_certificate_is_refused(authority: Authority) -> None:
    p1, d1 = (authority.of(host) for host in ("p1.internal", "d1.internal"))
    async with serving(config(InternalTls(files(p1)).server(internal=True))) as served:
        with pytest.raises(ssl.SSLCertVerificationError, match="d1"):
            await status(served, files(d1).client(), "d1.internal")
        right, wrong = (InternalTls(files(d1), name).to("10.0.0.1") for name in ("p1.internal", "d1.internal"))
        assert await status(served, *right.values()) == 200, "whatever the address is"
        with pytest.raises(ssl.SSLCertVerificationError):
            await status(served, *wrong.values())


async def test_a_client_without_tls_is_not_answered(authority: Authority) -> None:
    async with serving(config(server_context(files(authority.of("p1.internal"))))) as served:
        caller = await served.send(GET)
        await caller.closed()
        assert served.app.scopes == []


async def test_a_handshake_that_does_not_end_is_ended(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.core.net.served.acceptor.HANDSHAKE_S", 0.05)
    async with serving(config(server_context(files(authority.of("p1.internal"))))) as served:
        caller = await served.send(b"\x16\x03\x01")
        await caller.closed()


def copy(given: Certified, folder: Path) -> Certified:
    """The same, to be replaced."""
    return Certified(*(shutil.copy(path, folder / path.name) for path in (given.certificate, given.key, given.ca)))


def replace(old: Certified, new: Certified) -> None:
    for target, source in ((old.certificate, new.certificate), (old.key, new.key), (old.ca, new.ca)):
        draft = target.with_suffix(".draft")
        shutil.copy(source, draft)
        draft.rename(target)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_files_that_are_replaced_are_used_for_the_next_connection(
    run: object, authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    before, after = authority.of("p1.internal"), other_authority.of("p1.internal")
    own, clock = copy(before, tmp_path), Clock()
    own_files = files(own)
    client = Latest(own_files, own_files.client, clock.time)

    async def main() -> None:
        async with serving(config(server_context(own_files, clock.time))) as served:
            assert await status(served, client.get()) == 200
            replace(own, after)
            assert await status(served, files(before).client()) == 200, "it was looked at a moment ago"
            clock.go_on(5)
            assert await status(served, files(after).client()) == 200
            assert await status(served, client.get()) == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                await status(served, files(before).client())
            half_trusted = Files(before.certificate, before.key, after.ca)
            assert await status(served, half_trusted.client()) == 0, "the CA was replaced, too"

    run(main())  # type: ignore[operator]


async def test_files_that_cannot_be_used_change_nothing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, clock = copy(authority.of("p1.internal"), tmp_path), Clock()
    async with serving(config(server_context(files(own), clock.time))) as served:
        own.key.write_text("half of a file")
        for _ in range(3):
            clock.go_on(5)
            assert await status(served, files(authority.of("d1.internal")).client()) == 200
        assert len(caplog.messages) == 1 and "stays in use" in caplog.text


def test_files_are_not_looked_at_for_every_connection(authority: Authority, tmp_path: Path) -> None:
    own, clock, loads = copy(authority.of("p1.internal"), tmp_path), Clock(), list[int]()

    class Counting(Files):
        def stamp(self) -> tuple[object, ...]:
            loads.append(1)
            return super().stamp()

    counted = Counting(own.certificate, own.key)
    latest = Latest(counted, counted.server, clock.time)
    for _ in range(100):
        latest.get()
    assert len(loads) == 1


def encrypt(given: Certified) -> None:
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", given.key, "-out", given.key],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda own, _: own.key.unlink(), r"internal_tls_key_file: .*/p1.internal.key cannot be read: No such file"),
        (
            lambda own, _: own.certificate.write_text("x"),
            "internal_tls_certificate_file: .* does not hold a certificate",
        ),
        (lambda own, _: own.certificate.write_bytes(b"\xff\x00"), "internal_tls_certificate_file: .* PEM"),
        (lambda own, _: own.key.write_text(own.certificate.read_text()), "internal_tls_key_file: .* a private key"),
        (lambda own, other: shutil.copy(other.key, own.key), "internal_tls_key_file: .* is not the key of the certif"),
        (lambda own, _: encrypt(own), "internal_tls_key_file: .* is encrypted; a key without a passphrase is needed"),
        (lambda own, _: own.ca.write_text("-----BEGIN CERTIFICATE-----\nx"), "internal_ca_file: .* cannot be used"),
        (lambda own, _: own.ca.unlink(), "internal_ca_file: .* cannot be read"),
        (
            lambda own, _: own.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "internal_tls_certificate_file: .* cannot be used",
        ),
    ],
)
def test_an_error_about_a_file_is_one_sentence(spoil: object, said: str, authority: Authority, tmp_path: Path) -> None:
    own = copy(authority.of("p1.internal"), tmp_path)
    spoil(own, authority.of("d1.internal"))  # type: ignore[operator]
    with pytest.raises(TlsError, match=said) as caught:
        internal_tls(Settings(**own.internal))
    assert "\n" not in str(caught.value)


class Settings(ProcessSettings):
    """Of some process."""

    section = "some"


@pytest.mark.parametrize(
    "wrong",
    [
        {"internal_tls_certificate_file": "/c"},
        {"internal_tls_certificate_file": "/c", "internal_tls_key_file": "/k"},
        {"internal_ca_file": "/ca"},
        {"internal_tls_name": "baton.internal"},
    ],
)
def test_half_of_a_set_up_of_tls_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"go together|needs internal_tls"):
        Settings(**wrong)  # type: ignore[arg-type]


async def test_a_port_of_our_own_is_known_by_its_certificate_alone(
    authority: Authority, other_authority: Authority
) -> None:
    own = authority.of("router.internal")
    async with serving(config(server_context(Files(own.certificate, own.key)))) as served:
        assert await status(served, own_certificate_context(own.certificate), "any.example") == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await status(served, own_certificate_context(other_authority.of("router.internal").certificate))
