"""Late reads from a vLLM server, with and without the fence: ``python -m bench.stale_reads --vllm ENVIRONMENT``.

``rounds``   one P and one D; in each round D stands still until other prompts have P's blocks, and then reads
"""
