"""Stock vLLM servers as child processes: nothing in them is changed.

``program``      finds vLLM and asks what it is
``extra_args``   the arguments that people pass on to every server
``server``       the command line and environment of one server
``held_ports``   ports for servers, held so that nobody else gets them
``launcher``     the process that runs one server, and reports to its parent as Baton's own processes do
``output``       what a server's output says about how far it is, and why it died
"""
