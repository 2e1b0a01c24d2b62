"""Sans-IO wire formats: bytes in, facts out. Nothing here touches a socket, a clock or a file."""
