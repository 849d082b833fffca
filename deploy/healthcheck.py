"""Whether the router or worker of this container lives: ``healthcheck PORT``. Exit status 0 says that it does.

It asks over loopback, as the port wants it: without TLS, or with. Nothing is told, so no certificate is checked.
"""

import contextlib
import http.client
import ssl
import sys

TIMEOUT_S = 2.0


def is_healthy(port: int) -> bool:
    """``GET /health`` is answered with 200."""
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        return _asked(plain)
    except ConnectionRefusedError:
        return False
    except (OSError, http.client.HTTPException):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return _asked(http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context))


def _asked(connection: http.client.HTTPConnection) -> bool:
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200


if __name__ == "__main__":
    try:
        sys.exit(0 if is_healthy(int(sys.argv[1])) else 1)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer: {error}")
