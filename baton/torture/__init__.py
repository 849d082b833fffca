"""``baton torture``: a whole Baton under load while its processes die, and a verdict on its answers.

``command``     from the command line to the exit code
``run``         one run, made of the parts below
``shape``       how many processes of each kind it has, and how they are started; ``vllm_shape`` with vLLM servers
``clients``     the clients, their questions, and the right answers
``faults``      injects faults into the processes
``verdict``     compares what clients saw with what they should have seen, and finds what was not released
``report``      the report for people; ``records`` is what was noted
"""
