"""The process with the router's NIXL agent: ``python -m baton_serve.router.vllm.leases.agent.main``.

NIXL and ZMQ are imported here only, so that a router without them, or with a NIXL that crashes, serves all the same.

``main``          takes commands from the router and answers with events: ``messages``
``side_channel``  asks side channels, any number at once, on the main thread's event loop
``agent_thread``  the thread that owns the NIXL agent, behind ``nixl_port``
"""
