"""The workers that this router knows: what it has in flight on each, their room and their health.

``pool``            all of them, and the listeners that are told of changes
``worker``          one of them, and a place on it
``route``           which workers may serve a model
``discovery``       keeps up with the registry; ``proven_workers`` lets in those that know the internal token
``health``          probes of workers that could not be reached, or whose breaker is open
``breaker``         when a worker that fails is left out, and how it comes back
``liveness``        whether a worker lives that is silent about a request for minutes
``readiness``       whether a load balancer should send requests here; ``missing``: workers that never came
``model_card``      what workers say of a model they serve
"""

from router.pool.pool import LOAD_TTL_S, WorkerPool
from router.pool.route import Route
from router.pool.worker import Reservation, Worker

__all__ = ["LOAD_TTL_S", "Reservation", "Route", "Worker", "WorkerPool"]
