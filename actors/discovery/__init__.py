"""Who serves what, and every change of it, in order."""
