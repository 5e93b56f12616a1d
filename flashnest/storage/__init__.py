"""Where records live: a DRAM table, an LMDB store on NVMe, a membership filter, and the router over them.

Storage moves rows; it never parses a policy (it is handed a `PlacementMap`) and never sees a token sequence.
"""
