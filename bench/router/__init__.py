"""Baton's router beside other routers, on stub engines: ``python -m bench.router``.

``workloads``  what the clients of one window do
``rounds``     the interleaved runs
``native/``    stub engines and load generator, in C, and their compilation
``harness/``   processes on their cores, their CPU time, the check of the flow, one window of load
``routers/``   how each router is started, and how peers are installed
``result/``    goals, tables, the report
"""
