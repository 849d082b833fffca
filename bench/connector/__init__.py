"""``pair``: one P and one D of vLLM, asked without a router, for benchmarks and for tests."""
