"""Drafted decoding against plain decoding: prompts, measurement, figures, table and plot."""
