"""Wyoming, Home Assistant's protocol of voices: events over TCP; needs the extra `wyoming`."""
