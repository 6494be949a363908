"""Runs on disk: training one, keeping it, opening it again."""
