"""Stock vLLM servers on CPUs (`stack`, `asking`), and a vLLM prefill worker without vLLM: its side channel, its
notifications and its leases, by the rules of vLLM 0.32.
"""
