"""What every process of Baton needs, whatever it does.

``settings``    how settings are declared, and those that all processes have
``log``         the format of log lines
``interpreter`` how one process starts another with Baton's own packages
``socket_child`` starts one that loads libraries such as NIXL's, with a socket to it
``frames``      the messages on such a socket
``log_pace``    how often a line that strangers can cause is logged
``failpoints``  where tests make a process die, stop or sleep
``turns``       bounds how many things are done in one turn of the event loop
``clock``       monotonic clocks in milliseconds
``signals``     signals as calls on the event loop
``status_pipe`` how a process reports its progress to its parent
``parent_death`` how a process ends with the one that started it
``task_end``    cancels a task until it has ended
``version``     the version of Baton
"""
