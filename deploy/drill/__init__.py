"""``make test-compose``: starts several of each service of the compose file, and kills one of each under load.

``deployment`` is the compose project and ``images`` what it is made of; ``streams`` are its clients and ``admin`` its
operator. ``peace`` waits for it and tells what an answer is; then ``doors``, ``abort``, ``worker_deaths``,
``redis_death`` and ``router_death`` are one scene each.
"""
