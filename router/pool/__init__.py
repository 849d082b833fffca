"""The workers that this router knows: its requests on each, their room and their health.

``pool``            all workers, and the listeners that are notified of changes
``worker``          one worker; ``kind``: what it may be, and what can read from what; ``usage``: how busy it is,
                    ``reservation``: a place on it; ``standing``: whether it may be asked; ``server_facts``: what is
                    known of a vLLM server
``view``            one worker as it is shown
``static_worker``   makes a worker from its address, or from the announcement of a vLLM server
``route``           which workers may serve a model
``candidates``      the workers that may serve a leg; ``ranking`` has many of them in the order of their load
``discovery``       follows the registry; ``proven_workers`` admits workers that prove they know the internal token
``health``          probes of workers that could not be reached, or whose breaker is open
``breaker``         when a failing worker is excluded, and how it is included again
``liveness``        whether a worker is alive that has sent nothing about a request for minutes
``lost``            workers that left without saying so
``readiness``       whether a load balancer should send requests here; ``missing``: workers that never registered
``model_card``      what workers report about a model they serve
"""

from baton_serve.router.pool.candidates import Candidates
from baton_serve.router.pool.pool import LOAD_TTL_S, WorkerPool
from baton_serve.router.pool.ranking import Ranking
from baton_serve.router.pool.reservation import Reservation
from baton_serve.router.pool.route import Route
from baton_serve.router.pool.worker import Worker

__all__ = ["LOAD_TTL_S", "Candidates", "Ranking", "Reservation", "Route", "Worker", "WorkerPool"]
