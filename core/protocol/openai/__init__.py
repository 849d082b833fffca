"""What clients of OpenAI's API may send. Begin with ``json_body`` and ``requests``."""
