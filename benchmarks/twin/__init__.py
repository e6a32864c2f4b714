"""The paper's model in PyTorch and in stock Keras, as a user would write it.

The scripts in the parent folder use it; with the folder `benchmarks` on the path, it is
`twin`.
"""
