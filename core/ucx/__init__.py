"""What UCX, the transport below NIXL, is told before it is loaded. NIXL itself is not imported here.

``environment``  its environment variables; ``network`` lists the network interfaces of this machine
"""
