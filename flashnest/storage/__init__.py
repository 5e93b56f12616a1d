"""Where records live: VRAM and DRAM tables, `lmdb` and `slots` on NVMe, the filter, the router and the sweep over them.

Storage moves rows; it never parses a policy (it is handed a `PlacementMap` and a `MovePlan`) and never sees a text.
"""
