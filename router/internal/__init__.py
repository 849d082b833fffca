"""What this router answers other routers on its internal port: its own part of lists, aborts, metrics and dashboard."""
