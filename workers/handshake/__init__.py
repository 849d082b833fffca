"""How engines learn to read each other's memory: main process, HTTP, no NIXL. Begin with ``pool``.

``pool``         D: connects to the engine that a hand-off names, once for all requests; ``peer_engine`` is one engine
``fetch``        D: fetches the metadata of the ranks of P; ``http`` is the client, ``resolver`` looks up host names
``local_ranks``  D: tells the local ranks to connect
``peer_reads``   D: which reads are in flight; ``peer_view`` is what metrics and load reports show
``server``       P: answers handshakes on the internal port
"""
