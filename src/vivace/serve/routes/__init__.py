"""The HTTP routes, a module for each API, and their OpenAPI description."""
