"""Runs and what is made of them: folders, metrics, provenance, sweeps, statistics, tables and reports."""
