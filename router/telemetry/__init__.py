"""What is counted (``metrics``) and what is traced (``tracing``) of requests."""
