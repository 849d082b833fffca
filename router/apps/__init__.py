"""The HTTP applications of a router: ``public`` for clients and operators, ``internal`` for other routers.

``collector``      all metrics of this process; ``group_metrics``: the sum over the processes that share a port
``pages``          ``/`` and ``/docs``
"""
