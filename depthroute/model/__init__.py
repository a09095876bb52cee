"""The decoder: the depth loop over a router, and the transformer around it."""
