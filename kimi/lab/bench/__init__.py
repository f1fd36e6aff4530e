"""How fast this machine loads, and re-encodes weights."""
