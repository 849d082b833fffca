"""OpenAI's Responses and Anthropic's Messages on Baton's own workers, which speak neither.

A request becomes a chat, so that it is prefilled, handed over, resumed, listed and aborted as chats are. Its answer is
a chat's, which the reply translates on its way to the client. Where only vLLM servers serve a model, nothing of this
happens: they speak both.

``port``          what a dialect has to bring: ``responses`` and ``messages`` do, one package each
``known``         the dialects, by path, and from a body to the chat that it becomes
``reply``         writes an answer, or an error, in the client's dialect
``chat_answers``  reads the answers of chats
``parts``         from the deltas of a chat, or its whole answer, to the parts of an answer: reasoning, text, calls
``stream``        from the events of a chat to the events of a dialect
``objects``       what the objects in bodies share, and how the types of a union are told apart
``names``         errors name the parameters of the dialect
"""
