"""Drafter families: each module reads one, `detect` finds out which one a checkpoint is."""
