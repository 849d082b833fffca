"""Notifications of reads, from D's ranks to P's ranks over NIXL. Begin with ``read_notices``.

``read_notices``  sends notifications, and counts those that arrive; ``notice_codec`` is their format
"""
