"""ZeroMQ inside a node: sockets on the running loop, and the two inboxes of an actor."""
