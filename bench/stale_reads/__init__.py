"""Late reads from a vLLM server, with and without the fence: ``python -m bench.stale_reads --vllm ENVIRONMENT``.

``pair``     one P and one D, asked without a router
``rounds``   in each round D stands still until other prompts have P's blocks, and then reads
"""
