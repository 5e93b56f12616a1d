"""Prompts for a run: real text, its repeats, and the text that an emulated model answers with.

Yields text, never tokens of a real model: `app` holds the tokenizer. Never imports runtime.
"""
