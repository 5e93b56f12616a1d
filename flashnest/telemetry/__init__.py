"""What is measured while a run goes on: requests, steps, lookups, the host, the machine. Never imports runtime."""
