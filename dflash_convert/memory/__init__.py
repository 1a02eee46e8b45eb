"""What a pair needs in memory, planned from headers."""
