"""Child processes: started, watched, started again when they die, and ended with their parent.

``child``            one process and what it says; ``kept_child`` starts it again when it dies, as ``restarts`` says
``embedded_redis``   a private Redis server; ``redis_child`` makes a child of it
``crew``             children that stand in for each other
``supervisor``       all children of a parent: started together, stopped in order
``router_processes`` ``baton router`` with one process or several
``control_socket``   where ``baton up`` takes commands
``display``          what a person sees of all this; ``output`` prints it
"""
