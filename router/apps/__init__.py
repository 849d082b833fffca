"""The HTTP applications of a router: ``public`` for clients and operators, ``internal`` for other routers.

``internal_routes``  this router's part of what the admin REST answers for all
``group_metrics``    ``/metrics``: the sum over the processes that share a port
``pages``            ``/`` and ``/docs``
"""
