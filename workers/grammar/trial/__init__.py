"""Tries forms where one that takes too long or too much memory harms nothing: in a process of its own. No torch here.

``messages``  what the worker's main process and that process say
``main``      the process: it forks for each form
``attempt``   one form, within limits
``process``   keeps the processes running, from the main process: forms have their turns, slow ones after all others
``fairness``  how many forms of one client wait, and in which turn
"""
