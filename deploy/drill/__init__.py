"""What `make test-compose` runs: the compose file with several of everything, and one of each killed as clients stream.

``deployment`` is the compose project and ``images`` what it is made of; ``streams`` are its clients and ``admin`` its
operator. ``peace`` waits for it and tells what an answer is; then ``doors``, ``abort``, ``worker_deaths``,
``redis_death`` and ``router_death`` are one scene each.
"""
