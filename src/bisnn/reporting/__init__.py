"""The page that shows runs, drawn from their files: `page.py`, and its charts."""
