"""From prompts to tokens, from tokens to text, and the bodies of answers. Main process; only two read files.

``tokenizer``         tokenizes prompts, and has the bytes that a token stands for. Begin here
``model_files``       what comes with a model as JSON; ``sampling_defaults`` is what its makers recommend there
``content_forms``     in which form a chat template wants the content of messages
``chat_template``     from a conversation to the text of a prompt
``detokenizer``       tokens to text, one at a time; ``text_stream`` does so up to a stop string
``transcript``        the answer to one request so far; ``logprobs`` in OpenAI's shapes
``shown_prompt``      what an answer shows of its prompt; ``json_list`` encodes it
``response_builder``  OpenAI's response bodies and stream chunks
"""
