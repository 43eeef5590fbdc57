"""Gristmill's compute side: the Worker, and the Engine that turns Jobs into tokens."""
