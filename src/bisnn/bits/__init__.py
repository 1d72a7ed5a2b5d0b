"""Below everything, without PyTorch: sums over packed bits, threads, and the one random number
generator.
"""
