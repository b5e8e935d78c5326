"""The page that the server shows at `/`."""
