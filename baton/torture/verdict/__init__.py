"""The verdict on a run.

``validate``    compares what a client saw with what it should have seen; ``router_log`` which workers died then
``settle``      whether everything was released afterwards
``costs``       how long blocks are kept that no D will read
"""
