"""Simulated clusters: what one machine cannot measure, asked of the project's own decisions on a simulated clock.

``load/``       what is asked: ``generated``, or a recorded ``trace``
``cluster/``    routers and workers; ``router/decisions`` has the parts of the real router
``questions/``  each asks one question and makes a table and a plot of it
``clock``       a heap of events behind asyncio's interface; ``costs`` says what things cost, and who measured it
``runs``        repeats clusters with several seeds; ``faults`` has the deaths in them
"""
