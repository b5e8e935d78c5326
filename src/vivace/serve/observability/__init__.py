"""What the server reports: metrics, logs and traces."""
