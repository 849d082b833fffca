"""Requests that wait for a worker with room, their order, and the limit on their retries.

``queues``        the queue for P and the queue for D, and what they are together
``worker_queue``  requests that wait for a worker with room; ``priorities`` has their classes
``drain_rate``    how fast a queue empties
``lease_limit``   how much of each P's cache is under leases, and which P therefore get no new prompt
``retry_budget``  how many retries all requests together may have
"""
