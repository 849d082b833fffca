"""The pages at ``/`` and ``/docs``. They load nothing from other sites, and contain no secrets."""
