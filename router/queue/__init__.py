"""Who waits for what, who is next, and how often all requests together may try again.

``worker_queue``  requests that wait for a worker with room; ``priorities`` are their classes
``drain_rate``    how fast a queue empties
``lease_limit``   how much of each P is under leases, and which P therefore gets no new prompt
``retry_budget``  how much may be tried again, all requests together
"""
