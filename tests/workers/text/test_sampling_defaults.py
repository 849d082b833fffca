"""What a model's makers recommend to sample with: from the file that comes with the model to what is in force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton_serve.workers.settings import WorkerSettings
from baton_serve.workers.text.model_files import ModelFileError
from baton_serve.workers.text.sampling_defaults import load

#: As Qwen's, with all that counts, and much that does not.
QWEN = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
    "num_beams": 1,
    "transformers_version": "4.51.0",
}
IN_FORCE = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0,
    "repetition_penalty": 1.05,
    "max_tokens": 2048,
}


def folder(path: Path, config: dict[str, Any] | None) -> str:
    path.mkdir()
    (path / "config.json").write_text('{"temperature": 0.1}')
    if config is not None:
        (path / "generation_config.json").write_text(json.dumps(config))
    return str(path)


def test_of_the_model_of_a_folder_or_none(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", QWEN)
    other = folder(tmp_path / "other", {"top_k": 5, "temperature": None})
    assert load("auto", model, None).given == IN_FORCE
    assert load(other, model, None).given == {"top_k": 5}
    assert load("none", model, None).given == {}
    assert load("auto", folder(tmp_path / "plain", None), None).given == {}


def test_a_folder_has_to_have_the_file(tmp_path: Path) -> None:
    model, empty = folder(tmp_path / "model", QWEN), folder(tmp_path / "empty", None)
    with pytest.raises(ModelFileError, match=r"^there is no generation_config\.json in "):
        load(empty, model, None)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": "x"}, {"max_new_tokens": 0}, {"min_p": 2}]
)
def test_values_that_no_request_may_have(wrong: dict[str, Any], tmp_path: Path) -> None:
    """The start says so, not each request."""
    model = folder(tmp_path / "model", wrong)
    with pytest.raises(ModelFileError, match="Without it: --generation-config none") as caught:
        load("auto", model, None)
    assert "\n" not in str(caught.value)
    assert load("none", model, None).given == {}


@pytest.mark.parametrize("text", [b'{"top_k": 5', b"", b"\xff", b'["top_k"]', b"null"])
def test_a_broken_file_is_named(text: bytes, tmp_path: Path) -> None:
    model = folder(tmp_path / "model", QWEN)
    (tmp_path / "model" / "generation_config.json").write_bytes(text)
    for source, of in (("auto", model), (model, folder(tmp_path / "other", None))):
        with pytest.raises(ModelFileError, match=r"^generation_config\.json in .*model ") as caught:
            load(source, of, None)
        assert "\n" not in str(caught.value)


def test_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def source(text: str) -> str:
        return WorkerSettings(model="m", generation_config=text).generation_config

    monkeypatch.chdir(tmp_path)
    assert [source(text) for text in ("auto", "none", "vllm")] == ["auto", "none", "none"]
    assert source("defaults") == str(tmp_path / "defaults"), "it means the same in every process"
