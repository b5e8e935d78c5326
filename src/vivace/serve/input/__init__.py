"""Input of clients: JSON, fields and recordings, checked before they are used."""
