"""What a browser finds at ``/`` and ``/docs``. Nothing on these pages comes from elsewhere, and nothing is secret."""
