"""Routers: choose a worker, book a permit, dispatch through the seam; payloads stay closed."""
