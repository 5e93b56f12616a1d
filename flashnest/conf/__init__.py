"""The Hydra groups, as YAML files. A package so that `pkg://flashnest.conf` is found when installed; holds no code."""
