"""Baton beside other routers, in front of the same two stock vLLM servers: ``python -m bench.vllm``.

``traffic``   what the clients of one round ask, and when they leave
``servers``   one P and one D, and what they say about themselves
``routers``   the routers: how each is started and ended
``round``     one round of the traffic through one router
``result``    what the rounds of each router come to, as a table
"""
