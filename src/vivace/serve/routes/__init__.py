"""The HTTP routes; each module defines `routes(context)`."""
