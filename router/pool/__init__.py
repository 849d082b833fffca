"""The workers this router knows, what is in flight on each from here, their room and their health.

``worker``  one of them, and a place on it
``route``   who may serve a model
``pool``    all of them, and who is told when something changes
"""

from router.pool.pool import LOAD_TTL_S, WorkerPool
from router.pool.route import Route
from router.pool.worker import Place, Worker

__all__ = ["LOAD_TTL_S", "Place", "Route", "Worker", "WorkerPool"]
