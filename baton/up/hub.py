"""Checks, before any process is started, whether a model of the Hugging Face hub can be loaded.

The hub is asked once, for a short time: without a network its own library would try file after file, several times
each, before it fails.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from baton_serve.baton.up.preflight import PreflightError

OFFLINE = "HF_HUB_OFFLINE"
#: Longest wait for the hub, seconds. This includes the look-up of its address, for which the system has no short limit.
TIMEOUT_S = 6.0
_TRUE = {"1", "on", "yes", "true"}
_REFUSED = {401, 403, 404}
#: A model needs at least one of these files; some have the second and a tokenizer file of another name.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def look_up(model: str, revision: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables to add before the model is loaded: none, or ``HF_HUB_OFFLINE`` if the hub is
    unreachable.

    Raises PreflightError when the model is neither on the hub nor, as a whole, in the local cache.
    """
    if environ.get(OFFLINE, "").lower() in _TRUE:
        if not is_cached(model, revision, environ):
            raise PreflightError(f"{OFFLINE} is set, and {model} is not in the local cache; {_instead(environ)}")
        return {}
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host = urlsplit(endpoint).netloc
    status = _ask(f"{endpoint.rstrip('/')}/{model}/resolve/{quote(revision or 'main', safe='')}/config.json", environ)
    if status is not None and status < 500 and status not in _REFUSED:
        return {}
    if is_cached(model, revision, environ):
        return {OFFLINE: "1"}
    if status in _REFUSED:
        which = f"{model} at revision {revision}" if revision else model
        raise PreflightError(f"{host} shows no model {which}: the name is wrong, or it wants a token (HF_TOKEN)")
    what = "cannot reach" if status is None else f"status {status} from"
    raise PreflightError(f"{what} {host} to load {model}, and it is not in the local cache; {_instead(environ)}")


def is_cached(model: str, revision: str | None, environ: Mapping[str, str]) -> bool:
    """Whether the config, the tokenizer and all files of the weights are in the local cache."""
    folder = _cache(environ) / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / (revision or "main")).read_text().strip()
    except OSError:
        commit = revision or ""
    snapshot = folder / "snapshots" / commit
    has_tokenizer = any((snapshot / file).is_file() for file in _TOKENIZERS)
    return bool(commit) and (snapshot / "config.json").is_file() and has_tokenizer and _has_weights(snapshot)


def _has_weights(snapshot: Path) -> bool:
    for index in snapshot.glob("*.index.json"):
        try:
            files = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return False
        return all((snapshot / file).is_file() for file in files)
    return any(path.is_file() for kind in ("*.safetensors", "*.bin") for path in snapshot.glob(kind))


def _ask(url: str, environ: Mapping[str, str]) -> int | None:
    """The status of the answer; None if none came in time."""
    answers: list[int] = []
    asking = threading.Thread(target=_ask_now, args=(url, environ, answers), name="hub", daemon=True)
    asking.start()
    asking.join(TIMEOUT_S)
    return answers[0] if answers else None


def _ask_now(url: str, environ: Mapping[str, str], answers: list[int]) -> None:
    import httpx

    token = _token(environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answers.append(httpx.head(url, headers=headers, timeout=TIMEOUT_S).status_code)
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return
    except (ImportError, ValueError):  # a proxy that httpx cannot use; the library that loads the model may be able to
        answers.append(200)


def _token(environ: Mapping[str, str]) -> str:
    try:
        file = Path(environ.get("HF_TOKEN_PATH") or _home(environ) / "token").expanduser()
        return (environ.get("HF_TOKEN") or file.read_text()).strip()
    except OSError:
        return ""


def _home(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environ.get("HF_HOME") or f"{cache}/huggingface").expanduser()


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HF_HUB_CACHE") or _home(environ) / "hub").expanduser()


def _instead(environ: Mapping[str, str]) -> str:
    return f"pass a local folder, or download it to {_cache(environ)} first"
