"""The router: OpenAI's API in front, prefill and decode workers behind, leases renewed in between. Never torch.

``front``      the hot path as raw ASGI: reads a request, answers it, notices that the client is gone
``exchange``   the life of one request: P, first token, held, D, relay
``request``    its states as one pure table
``exit``       the one place where every request ends
``workers``    the workers known, their room and health; ``placement`` picks among them, ``room_queue`` waits for room
``upstream``   the port to workers; ``http_client`` implements it
``admin``      list, abort; ``app`` puts it together; ``main`` runs it
"""
