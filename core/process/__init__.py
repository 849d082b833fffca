"""What every process of ours needs, whatever it does.

``settings``    how settings are declared, and those that all have
``log``         what a line of any process's log looks like
``interpreter`` how one of our processes starts another
``log_pace``    how often a line that strangers can cause is logged
``failpoints``  where tests may make a process die or dawdle
``clock``       the monotonic clock in milliseconds
``signals``     signals as calls on the event loop
``status_pipe`` how a process tells its parent how far it is
``parent_death`` how a process ends with the one that started it
``task_end``    cancels a task until it has ended
``version``     which Baton this is
"""
