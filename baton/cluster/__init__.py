"""A whole Baton on this machine for torture, end-to-end tests and measurements: each process has a name and can be
killed, stopped and started again.

``cluster``     Redis, workers and routers, started and ended in order
``process``     how a process is started, and one start of it
``spinning``    keeps stock vLLM servers on few cores from keeping everybody else waiting
"""
