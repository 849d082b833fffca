"""``/`` and ``/docs``: what a stranger finds, and what he does not."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from baton_serve.router.apps.pages.answers import ANSWERS
from baton_serve.router.apps.pages.calls import EXAMPLES
from baton_serve.router.apps.pages.home import PLACES
from tests.kits.browser import CHROMIUM, Page, browse
from tests.kits.router.cluster import Cluster, chat

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
#: All calls are listed.
REFERENCE_SHOWN = "document.querySelectorAll('.opblock').length > 15"
#: Whether the text of the first place is that much lighter than what is behind it: -1 to 1.
_CONTRAST = """(() => {
  const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number); return (r + g + b) / 765; };
  const element = document.querySelector('%s');
  let behind = element;
  while (behind && /^rgba/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const ground = behind ? light(getComputedStyle(behind).backgroundColor)
    : matchMedia("(prefers-color-scheme: dark)").matches ? 0 : 1;
  const text = light(getComputedStyle(element).color);
  return %s > 0.3;
})()"""
with_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")


async def test_the_first_page_says_what_this_is_and_where_things_are(cluster: Cluster) -> None:
    await cluster.add("both", model="secret-model")
    page = await cluster.client.get("/", headers=BROWSER)
    plain = await cluster.client.get("/")
    assert (page.status_code, plain.status_code) == (200, 200)
    assert page.headers["content-type"].startswith("text/html")
    assert plain.json() == {"name": "Baton", "version": version("baton-serve"), "paths": PLACES}
    for path in PLACES:
        assert f"/{path}<" in page.text
    for answer in (page, plain):
        assert version("baton-serve") in answer.text and "secret-model" not in answer.text
        assert answer.headers["vary"] == "accept"
    for path in set(PLACES) - {"v1"}:
        assert (await cluster.client.get(f"/{path}")).status_code == 200, path
    head = await cluster.client.head("/")
    assert (head.status_code, head.content) == (200, b"")


async def test_health_says_the_version(cluster: Cluster) -> None:
    assert (await cluster.client.get("/health")).json()["version"] == version("baton-serve")


async def test_there_is_an_icon(cluster: Cluster) -> None:
    icon = await cluster.client.get("/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/docs.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"])
async def test_pages_may_load_nothing_from_elsewhere(cluster: Cluster, path: str) -> None:
    answer = await cluster.client.get(path, headers=BROWSER)
    assert answer.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    sources = {source for name, value in policy.items() if name != "img-src" for source in value.split()}
    assert {source for source in sources if not source.startswith("'")} == set()
    assert "unsafe" not in policy.get("script-src", "")
    assert set(policy.get("img-src", "").split()) <= {"'self'", "data:"}
    if path in {"/", "/docs"}:
        assert not re.findall(r'(?:src|href)="(?:\w+:)?//', answer.text)


@with_browser
async def test_a_call_is_tried_out_on_a_page_that_asks_nobody_else(cluster: Cluster) -> None:
    await cluster.add("both")
    async with browse() as page:
        await page.open(f"{cluster.url}/docs", until=REFERENCE_SHOWN)
        shown = await try_out(page, "health_health_get")
        assert shown.startswith("200") and '"models"' in shown
        assert (await try_out(page, "v1_chat_completions_v1_chat_completions_post")).startswith("200")
        assert page.complaints == []
        assert page.urls and all(url.startswith((cluster.url, "data:")) for url in page.urls)


@with_browser
async def test_the_reference_is_dark_where_the_system_is(cluster: Cluster) -> None:
    """Also its text: light on dark, and dark on light."""
    async with browse() as page:
        await page.look(1200, 800, dark=True)
        await page.open(f"{cluster.url}/docs", until=REFERENCE_SHOWN)
        for dark in (True, False, True):
            await page.look(1200, 800, dark=dark)
            for place in ("nav a", ".opblock-tag a", ".opblock-description-wrapper, .opblock-summary-description"):
                await page.until(_CONTRAST % (place, "text - ground" if dark else "ground - text"))
        assert page.complaints == []


async def test_each_example_gets_an_answer_as_described(cluster: Cluster) -> None:
    await cluster.add("both", model="m1")
    document = (await cluster.client.get("/openapi.json")).json()
    assert document["info"]["description"] and {tag["name"] for tag in document["tags"]} == {
        tag for operations in document["paths"].values() for one in operations.values() for tag in one["tags"]
    }
    for path in EXAMPLES:
        called = document["paths"][path]["post"]
        example = called["requestBody"]["content"]["application/json"]["example"]
        assert example["model"] == "m1"
        answer = await cluster.client.post(path, json=example)
        if path in ANSWERS:
            assert answer.status_code == 200, (path, answer.text)
            found = ANSWERS[path].model_validate_json(answer.content)
            assert found.model_dump(exclude_unset=True)
            described = called["responses"]["200"]["content"]["application/json"]["schema"]
            assert described == {"$ref": f"#/components/schemas/{ANSWERS[path].__name__}"}
        else:
            assert answer.json()["error"]["code"] == "not_supported", (path, answer.text)


@with_browser
async def test_the_first_page_loads_in_a_browser_without_complaints(cluster: Cluster) -> None:
    async with browse() as page:
        await page.open(cluster.url, until="document.querySelectorAll('li a').length")
        assert await page.run("document.querySelectorAll('li a').length") == len(PLACES) - 1
        assert await page.run("getComputedStyle(document.querySelector('main')).maxWidth") != "none"
        assert page.complaints == []
        assert all(url.startswith(cluster.url) for url in page.urls)


async def try_out(page: Page, operation: str) -> str:
    """What the page shows once the call is answered."""
    call = f"document.querySelector('[id$=-{operation}] %s')"
    for button in (".opblock-summary-control", ".try-out__btn", ".execute"):
        await page.until(call % button)
        await page.run(f"{call % button}.click()")
    answer = call % ".live-responses-table tbody .response"
    await page.until(answer)
    return str(await page.run(f"{answer}.textContent"))


@pytest.mark.settings(api_keys=["key-1"], admin_token="sesame")
class TestWithKeys:
    async def test_a_stranger_sees_the_pages_and_not_the_reference(self, cluster: Cluster) -> None:
        for path in ("/", "/docs", "/favicon.ico", "/docs/docs.js"):
            assert (await cluster.client.get(path)).status_code == 200
        assert (await cluster.client.get("/openapi.json")).status_code == 401

    async def test_the_reference_says_which_call_needs_which_key(self, cluster: Cluster) -> None:
        answer = await cluster.client.get("/openapi.json", headers={"authorization": "Bearer key-1"})
        paths = answer.json()["paths"]
        assert paths["/v1/models"]["get"]["security"] == [{"api_key": []}]
        assert paths["/admin/abort"]["post"]["security"] == [{"admin_token": []}]
        assert "security" not in paths["/health"]["get"]
        assert set(answer.json()["components"]["securitySchemes"]) == {"api_key", "admin_token"}

    @with_browser
    async def test_the_page_asks_for_the_key_and_uses_it(self, cluster: Cluster) -> None:
        await cluster.add("both")
        assert (await cluster.post(chat())).status_code == 401
        async with browse() as page:
            await page.open(f"{cluster.url}/docs", until="document.querySelector('#login')?.hidden === false")
            page.complaints.clear()  # the 401
            for key, then in (("wrong", "!document.querySelector('#message').hidden"), ("key-1", "true")):
                await page.run(f"document.querySelector('#key').value = '{key}'")
                await page.run("document.querySelector('#login button').click()")
                await page.until(then)
            await page.until(REFERENCE_SHOWN)
            assert await page.run("document.querySelector('#login').hidden")
            assert "key-1" not in await page.run("location.href")
            assert (await try_out(page, "models_v1_models_get")).startswith("200")
