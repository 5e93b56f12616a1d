"""Measurements, one module a subject: `python -m benchmarks.NAME --json FILE`. Never imported by flashnest."""
