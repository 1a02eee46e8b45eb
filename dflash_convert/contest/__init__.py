"""Which drafter, which settings: candidates on the same work, and the settings that pay on this machine."""
