"""Programs for an interpreter that has Dynamo's wheel and nothing of callhome.

They are driven by JSON lines on stdin and answer with JSON lines on stdout; the wheel's own log
lines, which it also writes there, start with no ``{``.
"""
