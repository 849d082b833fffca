"""Whether a prefill engine that hangs or is gone delays handshakes with others, and handshakes the decoding.

The decode worker is real and has the demo model; the prefill engines are NIXL agents with a handshake port and nothing
else. While a stream runs on the worker, which knows no engine yet, one request for each engine is posted at once. Runs
in which all engines are well alternate with runs in which one never answers and one refuses, each with a new worker.

``first token``: time from posting a request to its first token, for the engines that are well in both kinds of run.
``longest gap``: longest time between two tokens of the stream meanwhile. Both are measured while the worker meets the
engines, and again, with as many requests of the same kind, when it knows them (``known``).
"""
