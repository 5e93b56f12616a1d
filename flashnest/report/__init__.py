"""What a run prints and writes: the live display, the table at its end, `report.json`. Measures nothing."""
