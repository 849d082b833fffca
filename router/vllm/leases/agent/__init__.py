"""The process with the router's NIXL agent: ``python -m baton_serve.router.vllm.leases.agent.main``.

NIXL is imported here only, so that a router without it, or with one that crashes, serves all the same.

``main``       takes commands from the router and answers: ``messages``
``nixl_port``  the NIXL agent
"""
