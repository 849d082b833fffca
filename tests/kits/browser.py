"""A headless Chromium, driven over its DevTools socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium")
_FLAGS = ("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--no-first-run")
#: Longest wait for the browser to start, and for an expression in the page to become true, seconds.
PATIENCE_S = 30.0

#: A promise that resolves once the expression is true. It looks whenever the page changes, as it does with snapshots.
_UNTIL = """new Promise((resolve) => {
  const look = () => { if (%s) { observer.disconnect(); resolve(true); } };
  const observer = new MutationObserver(look);
  observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  look();
})"""


#: True once the dashboard is connected or says why it is not.
DASHBOARD_SHOWN = "document.getElementById('connection')?.textContent.match(/^live|^not/)"


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._id = 0
        #: Exceptions, errors on the console, and files that did not load or that the page's policy refused, as JSON.
        self.complaints: list[str] = []
        #: Every URL that it has asked for.
        self.urls: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """One DevTools command. Raises TimeoutError, and RuntimeError when the browser refuses."""
        self._id += 1
        await self._socket.send_json({"id": self._id, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = json.loads(await self._socket.receive_str())
                if message.get("id") == self._id:
                    if "error" in message:
                        raise RuntimeError(f"{method}: {message['error']}")
                    return message["result"]
                self._note(message["method"], message.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        is_error = params.get("entry", {}).get("level") == "error" or params.get("type") == "error"
        if method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown" or (is_error and method.startswith(("Log.", "Runtime."))):
            self.complaints.append(json.dumps(params))

    async def run(self, script: str) -> Any:
        """The value of the script, which is awaited. Raises RuntimeError when it throws."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true in the page. Raises TimeoutError."""
        await self.run(_UNTIL % expression)

    async def open(self, url: str, until: str = DASHBOARD_SHOWN) -> None:
        """Load a page, and wait until the expression is true in it."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until(until)

    async def look(self, width: int, height: int, *, dark: bool = False) -> bytes:
        """The page as a window of that size shows it, as PNG."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@contextlib.asynccontextmanager
async def browse() -> AsyncIterator[Page]:
    """An empty tab of a browser of its own. Raises FileNotFoundError where there is no Chromium."""
    if CHROMIUM is None:
        raise FileNotFoundError("no chromium (Debian: apt-get install chromium)")
    flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else _FLAGS
    quiet = asyncio.subprocess.DEVNULL
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM, *flags, f"--user-data-dir={folder}", "about:blank", stdout=quiet, stderr=quiet
        )
        try:
            port = await _port(Path(folder, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tabs = await answer.json()
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                browser.terminate()
            await browser.wait()


async def _port(told: Path) -> str:
    """The port, from the file into which the browser writes it, once a whole line is there. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not (port := _first_line(told)):  # noqa: ASYNC110 (a file has no event to wait on)
            await asyncio.sleep(0.02)  # another process writes it
    return port


def _first_line(path: Path) -> str:
    line, end, _ = path.read_text().partition("\n") if path.exists() else ("", "", "")
    return line if end else ""
