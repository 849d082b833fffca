"""How engines learn to read each other's memory: main process, HTTP, no NIXL. Begin with ``pool``.

``pool``         on D: connects to the engine that a hand-off names, once for all requests; ``peer_engine`` is an engine
``fetch``        on D: fetches the metadata of P's ranks; ``http`` is the client, ``resolver`` looks up host names
``local_ranks``  on D: has the local ranks connect
``peer_view``    on D: what metrics and load reports show
``server``       on P: answers handshakes on the internal port
"""
