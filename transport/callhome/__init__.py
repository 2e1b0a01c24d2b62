"""TCP between nodes: sockets, the call-home handshake and the request plane; buffers only."""
