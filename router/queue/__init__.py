"""Requests that wait for a worker with room, which of them is next, and how many retries all of them may have.

``worker_queue``  requests that wait for a worker with room; ``priorities`` are their classes
``drain_rate``    how fast a queue empties
``lease_limit``   how much of each P is under leases, and which P therefore gets no new prompt
``retry_budget``  how many retries all requests together may have
"""
