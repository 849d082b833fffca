"""``python trim-packages.py``: remove from a worker's environment what serving never loads, about a third of it.

Runs with the interpreter of the environment that is trimmed, in the image's build stage only.
"""

import shutil
import sysconfig
from pathlib import Path

#: nixl has a build for each CUDA version and loads one of them (see nixl/__init__.py), without CUDA the newest.
NIXL_BUILDS, NIXL_DEFAULT = ("12", "13"), "13"
#: PyTorch's own tests, what is needed to compile extensions, and NIXL's kernels for mixtures of experts.
UNUSED = ("torch/test", "torch/include", "torch/bin/test_*", "torch/bin/*Test", "torch/bin/protoc*", "nixl_ep*")


def main(site_packages: Path) -> None:
    used = nixl_build()
    others = [f"nixl_cu{cuda}*" for cuda in NIXL_BUILDS if cuda != used]
    for pattern in (*UNUSED, *others):
        for path in site_packages.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def nixl_build() -> str:
    """The CUDA whose build of NIXL is loaded beside this PyTorch."""
    from torch.version import cuda

    return cuda.partition(".")[0] if cuda else NIXL_DEFAULT


if __name__ == "__main__":
    main(Path(sysconfig.get_path("purelib")))
