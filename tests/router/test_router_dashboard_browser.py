"""The dashboard in a real Chromium, driven over its DevTools socket. Skipped where there is none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio
from router_cluster import Cluster, chat, eventually, make_settings
from router_stubs import Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.settings import RouterSettings

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")

#: Resolves once the expression is true; the page changes with every snapshot, which is what wakes it.
UNTIL = """new Promise((resolve) => {
  const look = () => { if (%s) { observer.disconnect(); resolve(true); } };
  const observer = new MutationObserver(look);
  observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  look();
})"""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._id = 0
        #: What went wrong in the page: exceptions, and what its policy refused.
        self.complaints: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        self._id += 1
        await self._socket.send_json({"id": self._id, "method": method, "params": params})
        async with asyncio.timeout(30):
            while True:
                message = json.loads(await self._socket.receive_str())
                if message.get("id") == self._id:
                    assert "error" not in message, message
                    return message["result"]
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        is_refusal = message.get("params", {}).get("entry", {}).get("source") == "security"
        if message["method"] == "Runtime.exceptionThrown" or is_refusal:
            self.complaints.append(json.dumps(message["params"]))

    async def run(self, script: str) -> Any:
        """What the script gives, awaited."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Until the expression is true in the page."""
        await self.run(UNTIL % expression)

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.getElementById('connection')?.textContent.match(/^live|^not/)")


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    """An empty tab of a browser of its own."""
    assert CHROMIUM is not None
    flags = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--no-first-run"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        quiet = asyncio.subprocess.DEVNULL
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM, *flags, f"--user-data-dir={folder}", "about:blank", stdout=quiet, stderr=quiet
        )
        try:
            told = Path(folder, "DevToolsActivePort")
            await eventually(lambda: bool(_port(told)), "the browser tells its port")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{_port(told)}/json") as answer:
                    tabs = await answer.json()
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            browser.terminate()
            await browser.wait()


def _port(told: Path) -> str:
    return told.read_text().partition("\n")[0] if told.exists() else ""


async def test_a_request_is_shown_and_aborted(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill")
    d = await cluster.add("decode")
    d.script.append(Hang())
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelectorAll('#workers article').length === 2")
    writer = await cluster.open(chat(stream=True, user="<img src=x onerror='window.hit=1'>"))
    await page.until("document.querySelector('#requests .state')?.textContent === 'reading'")
    assert await page.run("document.querySelector('#flow .reading strong').textContent") == "1"
    assert "<img src=x" in await page.run("document.querySelector('#requests .text').textContent")
    assert await page.run("document.images.length + (window.hit ?? 0)") == 0
    await page.run("document.querySelector('#requests button').click()")
    await page.until("document.querySelectorAll('#requests tr').length === 0")
    assert cluster.services.metrics.outcomes == {("aborted", "request_cancelled"): 1}
    assert page.complaints == []
    writer.close()


async def test_an_order_that_fails_says_why(cluster: Cluster, page: Page) -> None:
    await cluster.add("prefill")
    await page.open(f"{cluster.url}/dashboard")
    await page.until("document.querySelector('#workers button')")
    cluster.services.pool.apply([])
    await page.run("document.querySelector('#workers button').click()")
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
        assert page.complaints == []
