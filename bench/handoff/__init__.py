"""The hand-off beside stock vLLM's, from the last prefill step of P to the first token of D.

``model``    a random model of the size that is handed over, and prompts for it
``client``   one request and when its tokens came
``systems``  Baton and two stock vLLM servers: how each is started, asked for a prefill and for a whole answer
``rounds``   what is measured in one round, the systems in turn
``result``   what the rounds come to, as tables
"""
