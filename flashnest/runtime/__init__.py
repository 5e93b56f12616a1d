"""Tokens: requests, KV blocks, drafting, the model's forward, verification, the engine's step.

Runtime takes plain typed values, never configuration, and knows a table only as `Router`.
"""
