"""The hand-off beside stock vLLM's, from the last prefill step of P to the first token of D.

The model and the prompts are those of ``bench.models.words``.

``systems``  Baton and two stock vLLM servers: how each is started, asked for a prefill and for a whole answer
``rounds``   what is measured in one round, the systems in turn
``result``   what the rounds come to, as tables
"""
