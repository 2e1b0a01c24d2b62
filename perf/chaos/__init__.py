"""``python -m perf chaos``: streams of all shapes while everything around them dies, stops and
comes back; every item is accounted for.
"""
