"""P's side of the leases, in threads of their own.

``keeper``    grants, watches and ends them
``listener``  hears that one was released
``kept``      what HTTP asks about them, answered by keeper and engine together
"""
