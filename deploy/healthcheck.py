"""``healthcheck PORT``: exit status 0 if the router or worker of this container lives.

It asks over loopback, without TLS or with it, whichever the port speaks. No secret is sent, so no certificate is
checked. It uses the standard library alone, since a container runs it every few seconds.
"""

import contextlib
import http.client
import ssl
import sys

TIMEOUT_S = 2.0


def is_healthy(port: int) -> bool:
    """Whether ``GET /health`` is answered with 200. Raises OSError or HTTPException when there is no answer."""
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
