"""transport: bytes, streams, shared memory and sockets; it knows nothing of actors."""
