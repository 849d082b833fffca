"""What differs between the engines behind workers. Begin with ``port``, the interface that the steps use.

``port``            one engine: how P is asked, what its answer means, how the lease is renewed, what D's errors mean
``legs``            what P and D are sent
``prefill_answer``  P's answer (``answer_body`` decodes it), and the events that a client is sent of it
``stored_lease``    a lease in the store, which ``renewal`` keeps alive
``baton``           Baton's own workers; ``plain``: others with OpenAI's API. vLLM's are in ``router/vllm/engine``
"""
