"""The dashboard in a real Chromium, driven over its DevTools socket. Skipped where there is none."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from baton_serve.core.protocol.worker import WorkerLoad, WorkerStatus
from baton_serve.router.dashboard.share import MAX_LISTED
from tests.kits.browser import CHROMIUM, Page, browse
from tests.kits.router.cluster import Cluster, chat
from tests.kits.router.stub_workers import Hang, Refuse

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


def text_of(selector: str) -> str:
    return f"document.querySelector('{selector}')?.textContent"


async def click(page: Page, selector: str) -> None:
    """Once it is there."""
    await page.until(f"document.querySelector('{selector}')")
    await page.run(f"document.querySelector('{selector}').click()")


async def test_the_page_loads_and_asks_nobody_else(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")
    assert await page.run("document.querySelectorAll('.empty:not([hidden])').length") == 4
    assert await page.run(text_of("#verdict")) == "Something is wrong"
    assert "baton worker --role decode" in await page.run(text_of("#problems li"))
    assert f"curl {cluster.url}/v1/chat/completions" in await page.run(text_of("#example"))
    links = await page.run("[...document.querySelectorAll('nav a')].map((a) => a.href)")
    assert links == [f"{cluster.url}/docs", f"{cluster.url}/metrics"]
    assert page.complaints == []
    assert page.urls and all(url.startswith(cluster.url) for url in page.urls)


async def test_a_request_moves_and_is_aborted(cluster: Cluster, page: Page) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    prefilling = p.hangs()
    d.script.append(Hang())
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelectorAll('#prefill-workers article, #decode-workers article').length === 2")
    await cluster.open(chat(stream=True, user="<img src=x onerror='window.hit=1'>"))
    await page.until(f"{STATE} === 'prefilling' && {LANE} === 'prefilling'")
    prefilling.release.set()
    await page.until(f"{STATE} === 'reading' && {LANE} === 'reading'")
    assert await page.run("document.querySelector('#flow .reading strong').textContent") == "1"
    assert await page.run(text_of("#requests .lease")) == "4.3 s"
    assert await page.run("document.querySelector('#requests .lease i').style.width") == "72%"
    assert "<img src=x" in await page.run("document.querySelector('#requests .text').textContent")
    assert await page.run("document.images.length + (window.hit ?? 0)") == 0
    (request,) = cluster.active
    await click(page, "#requests button.id")
    assert await page.run(text_of("#details-id")) == request.request_id
    assert "4,321 ms left of 6,000 ms" in await page.run(text_of("#details-facts"))
    spent = "[...document.querySelectorAll('#details-timeline .state')].map((node) => node.textContent)"
    assert await page.run(spent) == ["queued", "prefilling", "held", "reading"]
    await click(page, "#details-order button.abort")
    assert request.request_id[:8] in await page.run(text_of("#ask-title"))
    assert await page.run("document.activeElement.id") == "ask-no"
    await click(page, "#ask-no")
    assert not request.progress.over
    await click(page, "#details-order button.abort")
    await click(page, "#ask-yes")
    await page.until("document.querySelectorAll('#requests tr').length === 0")
    await page.until(f"{text_of('#details-state')} === 'aborted'")
    assert "request_cancelled" in await page.run(text_of("#details-error"))
    assert "request_cancelled" in await page.run(text_of("#ended .aborted .why"))
    assert cluster.metrics.outcomes == {("aborted", "request_cancelled"): 1}
    assert page.complaints == []


async def test_a_worker_is_drained_and_resumed(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill", ours=False)
    await page.open(f"{cluster.url}/dashboard")
    button = "document.querySelector('#prefill-workers button.drain')"
    chip = "document.querySelector('#prefill-workers .chip')?.textContent"
    await page.until(f"{chip} === 'up'")
    (worker,) = cluster.pool
    await page.run(f"{button}.click()")
    assert "in use" not in await page.run("document.body.textContent")
    assert "It is the last one for prefill" in await page.run(text_of("#ask-text"))
    await click(page, "#ask-no")
    assert not worker.draining
    await page.run(f"{button}.click()")
    await click(page, "#ask-yes")
    await page.until(f"{chip} === 'draining'")
    assert worker.draining
    await click(page, "#prefill-workers button.id")
    assert worker.url in await page.run(text_of("#details-facts"))
    await click(page, "#details-close")
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
    await click(page, "#decode-workers button.drain")
    await click(page, "#ask-yes")
    await page.until("document.querySelector('#prefill-workers .chip').textContent === 'draining'")
    assert page.complaints == []


def others(cluster: Cluster, number: int) -> list[WorkerStatus]:
    """Of another model, at addresses that nobody asks."""
    record = cluster._status(cluster.workers[0]).record
    made = [
        msgspec.structs.replace(record, worker_id=f"w{i}", engine_id=f"e{i}", url=f"http://127.0.0.1:{i}", model="n")
        for i in range(1, number + 1)
    ]
    return [WorkerStatus(record=each, load=WorkerLoad()) for each in made]


@pytest.mark.slow  # five seconds alone, and more than 100 at load 20
async def test_two_thousand_requests_are_still_a_page(cluster: Cluster, page: Page) -> None:
    """And forty workers; the model of most is another one, so that the requests come to the first two."""
    await cluster.add("decode")
    p = await cluster.add("prefill", limit=1)
    p.script += [Hang() for _ in range(2)]
    await page.open(f"{cluster.url}/dashboard")
    for _ in range(2000):
        await cluster.open(chat())
    await page.until("document.querySelector('#flow .queued strong').textContent === '1,998'")
    assert await page.run("document.querySelectorAll('#requests tr').length") == MAX_LISTED
    assert await page.run("document.querySelectorAll('#flow .dots i').length") == MAX_LISTED
    assert "1,900 more" in await page.run("document.getElementById('hidden-count').textContent")
    assert await page.run("document.documentElement.scrollWidth <= window.innerWidth")
    cluster.pool.apply([*map(cluster._status, cluster.workers), *others(cluster, 38)])
    await page.until("document.querySelectorAll('.worker').length === 40")
    await page.run("document.querySelector('#requests .queued button.abort').click()")
    await click(page, "#ask-yes")
    await page.until("document.querySelector('#flow .queued strong').textContent === '1,997'")
    assert await page.run("document.querySelectorAll('*').length") < 7_000
    shown = "[...document.querySelectorAll('#requests tr')].filter((row) => row.checkVisibility()).length"
    assert await page.run(shown) == 12
    await click(page, "#more-requests")
    assert await page.run(shown) == MAX_LISTED
    assert page.complaints == []


async def test_an_order_that_fails_says_why(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill")
    await page.open(f"{cluster.url}/dashboard")
    await click(page, ".worker button.drain")
    cluster.pool.apply([])
    await click(page, "#ask-yes")
    await page.until("!document.getElementById('message').hidden")
    assert (await page.run(text_of("#message"))).startswith("Drain worker p0 failed: 4")


async def test_a_request_that_failed_says_why(cluster: Cluster, page: Page) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Refuse(400, {"error": {"message": "too <b>long</b>", "code": "context_length_exceeded"}}))
    failed = await cluster.post(chat())
    await cluster.post(chat())
    await page.open(f"{cluster.url}/dashboard")
    await page.until(f"{text_of('#ended .failed .why')} === 'context_length_exceeded too <b>long</b> (while reading)'")
    assert await page.run("document.querySelectorAll('#ended tr').length") == 2
    await click(page, "#outcomes input[value=failed]")
    assert await page.run("[...document.querySelectorAll('#ended tr')].map((row) => row.className)") == ["failed"]
    await click(page, "#ended tr")
    assert await page.run(text_of("#details-id")) == failed.headers["x-request-id"]
    assert await page.run(text_of("#details-error")) == "400 context_length_exceeded: too <b>long</b> (while reading)"
    assert page.complaints == []


async def test_mistakes_of_clients_are_no_alarm(cluster: Cluster, page: Page) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    d.script.append(Refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}))
    answers = [await cluster.post(body) for body in (chat(), {}, chat(model="unknown"))]
    assert [answer.status_code for answer in answers] == [400, 400, 404]
    await page.open(f"{cluster.url}/dashboard")
    await page.until(f"{text_of('#summary')}?.includes('3 client errors in the last minute')")
    assert await page.run(text_of("#verdict")) == "All well"
    assert await page.run(text_of("#problems")) == ""
    p.script += [Refuse(401, {})] * 3
    assert (await cluster.post(chat())).status_code == 502
    await page.until(
        f"{text_of('#problems li strong')}?.startsWith('1 request failed in the last minute, the newest with')"
    )
    assert await page.run(text_of("#verdict")) == "Something is wrong"
    assert "context_length_exceeded" not in await page.run(text_of("#problems"))
    await click(page, "#problems li.bad button")
    assert await page.run("document.querySelector('#outcomes input:checked').value") == "failed"


#: The problems of a router that did nothing but refuse and fail, by status: ``[level, text]`` each.
VERDICT = """import('/dashboard/health.js').then(({problemsOf}) => {
  const [refused, failed] = %s;
  const columns = (some) => Object.fromEntries(
    Object.entries(some).map(([status, number]) => [status, [number / 2, 0]]));
  const total = (some) => [Object.values(some).reduce((sum, number) => sum + number, 0) / 2, 0];
  const worker = (role) => (
    {id: role, role, healthy: true, draining: false, breaker: 'closed', handshakes: {failed: 0}});
  return problemsOf({workers: [worker('prefill'), worker('decode')], lost: [], routers: [], requests: [], ended: [],
    queues: {prefill: {oldest_ms: null}, held: {oldest_ms: null}}, history: {step_s: 2,
      failed_per_s: total(failed), refused_per_s: total(refused),
      failed_by_status: columns(failed), refused_by_status: columns(refused)}}).map(({level, text}) => [level, text]);
})"""


async def test_each_alarm_names_its_own_count(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")

    async def said(refused: dict[int, int], failed: dict[int, int]) -> list[str]:
        problems = await page.run(VERDICT % json.dumps([refused, failed]))
        return [f"{level}: {text.replace(', in the last minute.', '')}" for level, text in problems]

    assert await said({400: 43, 404: 1, 403: 3, 413: 1, 405: 2, 408: 1, 409: 1, 415: 1, 431: 9}, {}) == []
    assert await said({401: 19}, {}) == []
    assert await said({401: 20}, {}) == ["warn: 20 × 401: a wrong key"]
    both = ["warn: 12 × 429: too much at once", "warn: 1 × 503: no worker to take it, or the router was stopping"]
    assert await said({400: 43, 429: 12, 503: 1}, {}) == both
    assert await said({500: 2}, {}) == ["warn: 2 × 500: refused because of an error of the router"]
    assert await said({}, {400: 7, 404: 1, 422: 1}) == []
    assert await said({}, {400: 7, 429: 1, 408: 1, 502: 1}) == ["bad: 3 requests failed in the last minute."]


async def test_the_first_request_can_be_typed_whatever_the_model_is_called(cluster: Cluster, page: Page) -> None:
    name = 'it\'s $(touch x) "m"'
    await cluster.add("prefill", model=name)
    await page.open(f"{cluster.url}/dashboard")
    await page.until(f"{text_of('#example')}.includes('touch')")
    words = shlex.split(await page.run(text_of("#example")))
    assert words[:-1] == ["curl", f"{cluster.url}/v1/chat/completions", "-H", "content-type: application/json", "-d"]
    assert json.loads(words[-1])["model"] == name


#: What stands beside an axis of each plot.
AXIS = """[...document.querySelectorAll('.axis.%s')].map((axis) => [...axis.children].map((end) => end.textContent))"""
#: Where axes end.
ENDS = """import('/dashboard/axis.js').then(({endOf, widthOf, timesOf}) => [
  endOf(0, 1), endOf(0.3, 1), endOf(41, 1), endOf(1000, 1), widthOf(31), widthOf(999), ...timesOf(300, 2)])"""


async def test_every_plot_has_its_axes(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelectorAll('#plots figure').length === 6")
    assert await page.run(AXIS % "times") == [["−1 min", "−30 s", "now"]] * 6
    assert all(low == "0" and half and high for high, half, low in await page.run(AXIS % "values"))
    assert await page.run(ENDS) == [1, 1, 60, 1000, 60, 300, "−10 min", "−5 min", "now"]
    titles = await page.run("[...document.querySelectorAll('figcaption strong')].map((title) => title.textContent)")
    assert "Requests ended/s" in titles and "Requests/s" not in titles


#: What sticks out of the window, or has text that is not all seen, but for what is there for screen readers alone.
CUT = """[...document.querySelectorAll('main *, #top *')].filter((node) => {
  const box = node.getBoundingClientRect();
  if (!node.checkVisibility() || box.width < 2 || node.closest('svg, thead, .axis, .unseen')) return false;
  const hides = getComputedStyle(node).overflowX !== 'visible' && node.scrollWidth > node.clientWidth + 1;
  const isColumn = box.width < 30 && box.height > 60; // of single letters
  return isColumn || box.right > document.documentElement.clientWidth + 0.5 || box.left < -0.5 || hides;
}).map((node) => node.outerHTML.slice(0, 120))"""
#: Sections from top to bottom.
ORDER = """[...document.querySelectorAll('main > section')].sort((a, b) =>
  a.getBoundingClientRect().top - b.getBoundingClientRect().top).map((section) => section.id)"""


async def test_nothing_is_cut_on_any_screen(cluster: Cluster, page: Page) -> None:
    """Requests and workers come first on a phone. Long names are there to be wrapped."""
    p = await cluster.add("prefill", model="organisation/a-model-with-a-long-name-70b-instruct")
    await cluster.add("decode", model=p.model)
    d = await cluster.add("decode", ours=False)
    d.model = p.model
    await cluster.post(chat(model=p.model))
    list(cluster.pool)[-1].standing.healthy = False
    p.script.append(Refuse(400, {"error": {"message": "a-reason-without-a-space-" * 8, "code": "bad"}}))
    await cluster.post(chat(model=p.model))
    p.script += [Hang(), Hang()]
    for _ in range(2):
        await cluster.open(chat(model=p.model, stream=True, user="somebody@" + "x" * 50))
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelectorAll('#requests tr').length === 2")
    for width, height in ((1400, 900), (800, 600), (390, 844)):
        await page.look(width, height)
        assert await page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
        assert await page.run(CUT) == [], width
    assert await page.run(ORDER) == ["health", "list", "pools", "over", "way", "history"]
    await click(page, "#ended .failed button.id")
    assert await page.run("document.getElementById('details').scrollWidth <= innerWidth")
    assert page.complaints == []


async def test_the_page_says_that_the_router_is_gone(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")
    assert await page.run("document.getElementById('lost').hidden")
    await page.run("import('/dashboard/stream.js').then(({limits}) => { limits.silenceMs = 50; })")
    await cluster.add("decode")  # the limit counts from the next news
    await page.until(f"{text_of('#connection')} === 'reconnecting'")
    assert "the router has fallen silent" in await page.run(text_of("#lost-text"))
    assert await page.run("document.body.classList.contains('stale') && !document.querySelector('main').hidden")
    await page.run("import('/dashboard/stream.js').then(({limits}) => { limits.silenceMs = 60000; })")
    await click(page, "#lost-now")
    await page.until(f"{text_of('#connection')} === 'live' && document.getElementById('lost').hidden")
    cluster.server.stop()
    await page.until(f"{text_of('#connection')} === 'reconnecting'")


#: Snapshots of one stream, ``[seconds, tokens]`` each, and for how long it then stands still, milliseconds.
STUCK = """import('/dashboard/stuck.js').then(({withStuck}) => %s.map(([time, num_tokens]) => withStuck({time,
  requests: [{id: 'a', state: 'decoding', stream: true, num_tokens, in_state_ms: 60000}]}).requests[0].stuck_ms))"""


async def test_a_stream_of_which_nothing_comes_is_marked(cluster: Cluster, page: Page) -> None:
    await page.open(f"{cluster.url}/dashboard")
    assert await page.run(STUCK % "[[0, 5], [9, 5], [11, 5], [12, 6], [20, 6]]") == [0, 0, 11000, 0, 0]


@pytest.mark.settings(admin_token="secret")
class TestToken:
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

    async def test_a_link_may_bring_the_token(self, cluster: Cluster, page: Page) -> None:
        await page.open(f"{cluster.url}/dashboard#token=secret")
        await page.until("!document.querySelector('main').hidden")
        assert await page.run("location.href") == f"{cluster.url}/dashboard"
        assert page.complaints == []
