"""Redis behind TLS, by the options of its URL that docs/security.md names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import LeaseStoreError
from baton_serve.core.net.tls import Files, server_context
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.core.registry.store import RegistryError
from tests.kits.certificates import Authority
from tests.kits.redis_proxy import RedisProxy
from tests.kits.registry import LONG_MS, Watch, worker


@pytest.fixture
async def url(authority: Authority, redis_url: str) -> AsyncIterator[str]:
    """A relay that speaks TLS to the outside; its URL, without options."""
    own = authority.of("router.internal")
    context = server_context(Files(own.certificate, own.key))
    async with RedisProxy(lambda: urlsplit(redis_url).path, tls=context) as proxy:
        yield f"rediss://127.0.0.1:{proxy.port}/0"


async def test_the_ca_is_named_in_the_url(authority: Authority, url: str) -> None:
    trusting = f"{url}?ssl_ca_certs={authority.ca}"
    registry, leases = RedisRegistry(trusting, WORKERS), RedisLeaseStore(trusting)
    await registry.announce(worker("a"), LONG_MS)
    async with Watch(registry) as watch:
        await watch.until([worker("a")])
    await asyncio.to_thread(leases.grant, "e", ["lease"], 1000)
    await registry.close()
    leases.close()


async def test_a_redis_that_is_certified_by_another_ca_is_refused(other_authority: Authority, url: str) -> None:
    distrusting = f"{url}?ssl_ca_certs={other_authority.ca}"
    registry, leases = RedisRegistry(distrusting, WORKERS), RedisLeaseStore(distrusting)
    with pytest.raises(RegistryError):
        await registry.announce(worker("a"), LONG_MS)
    with pytest.raises(LeaseStoreError):
        await asyncio.to_thread(leases.grant, "e", ["lease"], 1000)
    await registry.close()
    leases.close()
