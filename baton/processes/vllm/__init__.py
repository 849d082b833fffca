"""vLLM servers as child processes. Nothing in them is changed; they may load Baton's connector.

``program``      finds vLLM and asks what it is
``extra_args``   the arguments that people pass on to every server
``connectors``   what hands their KV blocks over
``server``       the command line and environment of one server
``held_ports``   ports for servers, held so that nobody else gets them
``launcher``     the process that runs one server, and reports to its parent as Baton's own processes do
``output``       what a server's output says about how far it is, and why it died
"""
