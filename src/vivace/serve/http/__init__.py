"""HTTP: connections, middleware, access control, responses and their bodies."""
