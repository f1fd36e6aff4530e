"""Bringing a full-size checkpoint onto devices: streamed from its files, or from a store."""
