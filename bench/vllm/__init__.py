"""Baton beside other routers, in front of the same two stock vLLM servers: ``python -m bench.vllm``.

``traffic``   what the clients of one round ask, and when they leave
``client``    one client and what it saw
``servers``   one P and one D, started once, and what they say about themselves
``routers``   the routers: how each is started and ended
``blocks``    P's blocks over time, and those that nobody needed
``round``     one round of the traffic through one router
``result``    what the rounds of each router come to, as a table
"""
