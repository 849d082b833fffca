"""What this router answers others on its internal port: its share of lists, aborts, metrics and the dashboard."""
