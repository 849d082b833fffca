"""What is known of vLLM servers: an announcement does not say enough, so each is asked again and again.

``announced``   the servers that announce themselves are workers as long as they do
``watchers``    one task per server, which ends when the server is no longer known
``watcher``     what is asked of one server, in which order, and what follows from the answers
``server``      the questions over HTTP; ``load``: what the page ``/metrics`` says
``side_channel``  the questions to its side channel
``names``       workers for all addresses of a host name
``problems``    what is wrong with a server, in sentences for people; ``pairs``: what is wrong between two
``expiries``    vLLM's own count of leases that expired, against what this router expected
"""
