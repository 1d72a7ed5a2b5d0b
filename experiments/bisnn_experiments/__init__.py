"""The experiments: the paper's figures and table (`bisnn reproduce`), and studies, each a module to
run: `python -m bisnn_experiments.uncertainty --help`. Installed beside `bisnn`, which never needs
them.
"""
