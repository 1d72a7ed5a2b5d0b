"""Below everything, without PyTorch: sums over packed bits, threads, random numbers."""
