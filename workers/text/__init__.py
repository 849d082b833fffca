"""From prompts to tokens and from tokens to text, with what is said of each token. Pure but for the tokenizer."""
