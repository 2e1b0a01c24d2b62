"""Ingresses: the door into a node. Take requests of other nodes, relay their streams; payloads stay
closed.
"""
