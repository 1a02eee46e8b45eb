"""How speeds are measured: the order of the runs, and what their times say. Pure functions, no engine."""
