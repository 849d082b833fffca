"""The dashboard in a real Chromium, driven over its DevTools socket. Skipped where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from router_cluster import Cluster, chat, eventually, make_settings
from router_stubs import Hang

from bench.browser import CHROMIUM, Page, browse
from router.dashboard.part import MAX_LISTED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.settings import RouterSettings

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")

#: The state of the only row.
STATE = "document.querySelector('#requests .state')?.textContent"
#: Which lane the only dot is in.
LANE = "document.querySelector('#flow .dots i')?.closest('li').dataset.key"


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    """An empty tab of a browser of its own."""
    async with browse() as opened:
        yield opened


async def test_the_page_loads_and_asks_nobody_else(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")
    assert await page.run("document.querySelectorAll('.empty:not([hidden])').length") == 3
    assert page.complaints == []
    assert page.urls and all(url.startswith(cluster.url) for url in page.urls)


async def test_a_request_moves_and_is_aborted(cluster: Cluster, page: Page) -> None:
    p, d = await cluster.add("prefill"), await cluster.add("decode")
    prefilling = Hang()
    p.script.append(prefilling)
    d.script.append(Hang())
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelectorAll('#prefill-workers article, #decode-workers article').length === 2")
    writer = await cluster.open(chat(stream=True, user="<img src=x onerror='window.hit=1'>"))
    await page.until(f"{STATE} === 'prefilling' && {LANE} === 'prefilling'")
    prefilling.release.set()
    await page.until(f"{STATE} === 'reading' && {LANE} === 'reading'")
    assert await page.run("document.querySelector('#flow .reading strong').textContent") == "1"
    assert await page.run("document.querySelector('#requests .lease').textContent") == "4.3 s"
    assert await page.run("document.querySelector('#requests .lease i').style.width") == "72%"
    assert "<img src=x" in await page.run("document.querySelector('#requests .text').textContent")
    assert await page.run("document.images.length + (window.hit ?? 0)") == 0
    await page.run("document.querySelector('#requests button').click()")
    await page.until("document.querySelectorAll('#requests tr').length === 0")
    assert cluster.services.metrics.outcomes == {("aborted", "request_cancelled"): 1}
    assert page.complaints == []
    writer.close()


async def test_a_worker_is_drained_and_resumed(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill", ours=False)
    await page.open(f"{cluster.url}/dashboard")
    button = "document.querySelector('#prefill-workers button')"
    chip = "document.querySelector('#prefill-workers .chip')?.textContent"
    await page.until(f"{chip} === 'up'")
    await page.run(f"{button}.click()")
    await page.until(f"{chip} === 'draining'")
    (worker,) = cluster.services.pool
    assert worker.draining
    await page.run(f"{button}.click()")
    await page.until(f"{chip} === 'up' && !{button}.disabled")
    assert not worker.draining
    assert page.complaints == []


async def test_a_worker_that_does_both_is_on_both_sides(cluster: Cluster, page: Page) -> None:
    await cluster.add("both", ours=False)
    await page.open(f"{cluster.url}/dashboard")
    for side in ("prefill", "decode"):
        await page.until(f"document.querySelector('#{side}-workers .about')?.textContent === 'does both, m'")
        assert await page.run(f"document.getElementById('no-{side}').hidden")
    await page.run("document.querySelector('#decode-workers button').click()")
    await page.until("document.querySelector('#prefill-workers .chip').textContent === 'draining'")
    assert page.complaints == []


async def test_two_thousand_requests_are_still_a_page(cluster: Cluster, page: Page) -> None:
    await cluster.add("decode")
    p = await cluster.add("prefill", limit=1)
    p.script += [Hang() for _ in range(2)]
    await page.open(f"{cluster.url}/dashboard")
    writers = [await cluster.open(chat()) for _ in range(2000)]
    await page.until("document.querySelector('#flow .queued strong').textContent === '1,998'")
    assert await page.run("document.querySelectorAll('#requests tr').length") == MAX_LISTED
    assert await page.run("document.querySelectorAll('#flow .dots i').length") == MAX_LISTED
    assert "1,900 more" in await page.run("document.getElementById('hidden-count').textContent")
    assert await page.run("document.documentElement.scrollWidth <= window.innerWidth")
    await page.run("document.querySelector('#requests .queued button').click()")
    await page.until("document.querySelector('#flow .queued strong').textContent === '1,997'")
    assert page.complaints == []
    for writer in writers:
        writer.close()
    await eventually(lambda: len(cluster.services.active) == 0)


async def test_an_order_that_fails_says_why(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill")
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelector('.worker button')")
    cluster.services.pool.apply([])
    await page.run("document.querySelector('.worker button').click()")
    await page.until("document.getElementById('message').textContent.startsWith('Drain worker p0 failed: 404')")


class TestToken:
    @pytest.fixture
    def settings(self) -> RouterSettings:
        return make_settings(admin_token="secret")

    async def test_the_token_is_asked_for_until_it_is_right(self, cluster: Cluster, page: Page) -> None:
        await page.open(f"{cluster.url}/dashboard")
        assert await page.run("document.querySelector('main').hidden") is True
        for token, shown in (("wrong", "!document.getElementById('message').hidden"), ("secret", "true")):
            await page.run(f"document.getElementById('token').value = '{token}'")
            await page.run("document.querySelector('#login button').click()")
            await page.until(shown)
        await page.until("!document.querySelector('main').hidden")
        assert await page.run("sessionStorage.getItem('baton-admin-token')") == "secret"
        # Chromium itself notes each answer of 401 as an error.
        assert all("401" in complaint for complaint in page.complaints), page.complaints
