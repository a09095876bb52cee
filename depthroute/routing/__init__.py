"""Depth routing: what each sublayer reads of everything that was written before it."""
