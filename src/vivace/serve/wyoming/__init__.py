"""Wyoming, the voice protocol of Home Assistant: events over TCP. Needs the extra `wyoming`."""
