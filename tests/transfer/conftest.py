"""Before any test here imports NIXL, which reads its environment then."""

from workers.transfer.ucx import apply_ucx_environment

apply_ucx_environment("127.0.0.1")
