"""``python -m bench.screenshot``: docs/dashboard.png, from real workers under load. Needs Chromium.

Two P and three D of the demo model, and more requests than the D have room for, so that some are held with a lease.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from PIL import Image

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.demo.training.questions import load_questions
from bench.browser import browse
from bench.client import CHAT, AnswerError, Client, Stream
from bench.cluster import router, workers
from bench.report.arguments import above_zero, at_least

PREFILL = [{"num-blocks": 1024, "max-num-seqs": 3}] * 2
DECODE = [{"num-blocks": 512, "max-num-seqs": 3}] * 3
WIDTH, HEIGHT = 1400, 1180
MAX_COLOURS = 256
USERS = ("search", "support", "batch", "mobile", "docs")
#: True once the page counts at least so many requests in a state.
SHOWN = "%d <= Number(document.querySelector('#flow .%s strong')?.textContent)"


async def ask(client: Client, url: str, rng: random.Random) -> None:
    """One client: it asks for one stream after another until it is cancelled."""
    facts = load_questions()
    while True:
        context = " ".join(rng.choice(facts).answer for _ in range(rng.randint(5, 60)))
        body = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": f"{context} {rng.choice(facts).ask[0]}"}],
            "max_tokens": rng.randint(60, 400),
            "ignore_eos": True,
            "user": rng.choice(USERS),
        }
        with suppress(AnswerError):
            await client.read(url, body, Stream(), CHAT)
        await asyncio.sleep(rng.expovariate(1.0))


async def take(given: argparse.Namespace) -> bytes:
    """The page under load, as PNG."""
    rng = random.Random(1)
    async with workers(PREFILL, DECODE) as cluster, router(cluster) as url, Client() as client, browse() as page:
        clients = [asyncio.create_task(ask(client, url, rng)) for _ in range(given.clients)]
        try:
            await page.open(f"{url}/dashboard")
            await asyncio.sleep(given.seconds)
            await page.until(f"{SHOWN % (1, 'held')} && {SHOWN % (4, 'decoding')}")
            return await page.look(WIDTH, HEIGHT)
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def main() -> None:
    """Take the picture and write it."""
    parser = argparse.ArgumentParser(prog="bench.screenshot", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/dashboard.png"), help="default %(default)s")
    parser.add_argument("--seconds", type=above_zero, default=60.0, help="of load before it (default %(default)s)")
    parser.add_argument("--clients", type=at_least(1), default=20, help="streams at once (default %(default)s)")
    given = parser.parse_args()
    in_few_colours(asyncio.run(take(given))).save(given.out, optimize=True)
    print(f"{given.out}: {given.out.stat().st_size / 1024:.0f} KiB")


def in_few_colours(png: bytes) -> Image.Image:
    """The picture with a palette, which makes it small enough for a README."""
    return Image.open(BytesIO(png)).convert("RGB").quantize(MAX_COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
