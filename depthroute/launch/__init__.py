"""Back ends that run a sweep."""
