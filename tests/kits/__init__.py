"""What tests of several rooms use, and no test itself: one folder for each kind of thing that is tested.

``router`` a router in one process, with scripted workers behind it; ``worker`` a worker's ports over a scripted engine;
``engine`` ``rank`` ``transfer`` ``leases`` parts of a worker; ``baton`` the command line as a process, with stand-ins
for what it starts; ``whole`` a Baton of real processes, and what may be done to it; ``fuzz`` how much bad input is
tried.
"""
