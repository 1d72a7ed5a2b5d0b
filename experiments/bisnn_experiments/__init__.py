"""The experiments: the paper's figures and table, and studies of settings. Installed beside
`bisnn`, which never needs them.
"""
