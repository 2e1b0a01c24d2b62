"""The inside of an actor process and of its supervisor."""
