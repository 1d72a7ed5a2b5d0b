"""The commands, by topic. Nothing heavy is imported before one of them runs."""
