"""``baton torture``: a whole Baton under load while its processes die, and what came of it.

``command``     from the command line to the exit code
``run``         one run, made of the parts below
``shape``       how many processes of each kind it has, and how they are started
``traffic``     the clients; ``client`` is one of them
``questions``   what they ask; ``reference`` gets the right answers
``nemesis``     hurts the processes; ``schedule`` says in which order
``validate``    compares what a client saw with what it should have seen; ``one_stream`` and ``router_log`` help
``settle``      whether everything was given back afterwards
``costs``       how long blocks are kept that no D will read
``report``      what came of it, for people; ``records`` is what was noted
"""
