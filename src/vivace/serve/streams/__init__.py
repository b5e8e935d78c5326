"""The streams of the server: admitted, opened, counted, encoded and closed."""
