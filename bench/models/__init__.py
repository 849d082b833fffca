"""Llamas with random weights, for measurements on which what a model says does not depend.

``llama``  the sizes of one, and its weights
``sized``  5, 50 and 500 million parameters with the demo's tokenizer, made once and kept
``words``  4.5 million, every token of which is a word, and prompts for it
"""
