"""From prompts to tokens, from tokens to text, and the bodies of answers. Main process; only two read files.

``tokenizer``         tokenizes prompts; ``token_bytes`` has the bytes that a token stands for. Begin here
``model_files``       what comes with a model as JSON; ``sampling_defaults`` is what its makers recommend there
``content_forms``     in which form a chat template wants the content of messages
``chat_template``     from a conversation to the text of a prompt; ``infilling`` from a beginning and an end
``detokenizer``       tokens to text, one at a time; ``stop_strings`` finds the end; ``text_stream`` combines both
``transcript``        the answer to one request so far; ``logprobs`` in OpenAI's shapes, ``first_logprobs`` checks P's
``shown_prompt``      what an answer shows of its prompt; ``prompt_logprobs`` in vLLM's shape, ``json_list`` encodes it
``response_builder``  OpenAI's response bodies and stream chunks
"""
