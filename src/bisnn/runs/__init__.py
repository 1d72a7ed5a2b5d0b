"""Runs: from a config to a trained model in a folder, and to a verdict on its test points."""
