"""flashnest: an n-gram table whose records live in GPU memory, DRAM or NVMe by a policy written as text.

Reading order: `record` (the words every layer shares), `policy` (text to checked placement), `storage` (where
records live), `runtime` (the decode loop), `app` (the wiring), `report` (what a run prints). Nothing heavy is
imported here: `flash-nest policy check` must end within 0.6 s.
"""

__version__ = "0.1.0"
