"""The pages at ``/`` and ``/docs``. They load nothing from other sites, and have no secrets."""
