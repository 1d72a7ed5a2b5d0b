"""The search for settings: `bisnn tune`, by Optuna, on validation points alone."""
