"""Finding vLLM, and what is wrong with one that cannot be used, one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_serve.baton.processes.vllm.connectors import BATON, STOCK
from baton_serve.baton.processes.vllm.program import VllmError, find_vllm
from tests.kits.baton.fake_vllm import make_environment, make_wrapper


def test_an_environment_its_python_and_its_script_are_the_same(vllm_environment: Path) -> None:
    python = str(vllm_environment / "bin" / "python")
    found = find_vllm(str(vllm_environment))
    assert found.command == (python, "-m", "vllm.entrypoints.openai.api_server")
    assert (found.version, found.on_cpu, found.model_flag) == ("0.32.0", True, ("--model",))
    assert find_vllm(python) == find_vllm(str(vllm_environment / "bin" / "vllm")) == found
    found.check_connector(BATON)


def test_it_is_found_on_path(vllm_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(vllm_environment / "bin"))
    assert find_vllm(None).version == "0.32.0"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(VllmError, match=r"there is no vllm on PATH; say where it is with --vllm, or install it: pip"):
        find_vllm(None)


def test_the_package_for_gpus_has_a_command_line_that_works(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "gpu", package="vllm", version="0.32.3")
    found = find_vllm(str(folder))
    assert found.command == (str(folder / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "serve")
    assert (found.version, found.on_cpu, found.model_flag) == ("0.32.3", False, ())


def test_a_script_that_is_no_python_script_is_run_as_it_is(tmp_path: Path, vllm_environment: Path) -> None:
    wrapper = make_wrapper(tmp_path / "vllm", vllm_environment)
    assert find_vllm(str(wrapper)).command == (str(wrapper), "serve")


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.32.0", "dev"])
def test_other_versions_are_refused(tmp_path: Path, version: str) -> None:
    folder = make_environment(tmp_path / "other", version=version)
    with pytest.raises(VllmError, match=rf"is {version}; Baton needs 0\.32: pip install"):
        find_vllm(str(folder))


def test_what_is_no_vllm(tmp_path: Path) -> None:
    with pytest.raises(VllmError, match=r"there is no /nowhere/vllm; --vllm is a vllm script, a Python, or the folder"):
        find_vllm("/nowhere/vllm")
    with pytest.raises(VllmError, match="is not the folder of a Python environment"):
        find_vllm(str(tmp_path))
    script = tmp_path / "vllm"
    script.write_text("#!/bin/sh\necho no such flag >&2; exit 2\n")
    with pytest.raises(VllmError, match=r"may not be executed: chmod \+x it"):
        find_vllm(str(script))
    script.chmod(0o755)
    with pytest.raises(VllmError, match="does not say which vLLM it is: no such flag"):
        find_vllm(str(script))


def test_an_environment_that_lacks_something(tmp_path: Path) -> None:
    without_nixl = make_environment(tmp_path / "one", has_nixl=False)
    with pytest.raises(VllmError, match=r"has no nixl, which hands KV blocks over: .*bin/python -m pip install nixl"):
        find_vllm(str(without_nixl))
    without_connector = find_vllm(str(make_environment(tmp_path / "three", has_connector=False)))
    without_connector.check_connector(STOCK)
    with pytest.raises(VllmError, match=r"does not have .* -m pip install 'baton-serve\[connector\]', or .*: --stock"):
        without_connector.check_connector(BATON)
    bare = make_environment(tmp_path / "two")
    (site_packages,) = bare.glob("lib/python*/site-packages")
    (site_packages / "vllm").rename(site_packages / "other")
    with pytest.raises(VllmError, match="has no vLLM: pip install"):
        find_vllm(str(bare))
