"""Corpora, tokenizers, token shards, and batches as a pure function of seed and step."""
