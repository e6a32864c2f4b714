"""What a user would otherwise write: the paper's model in PyTorch and in stock Keras.

The scripts beside this folder use it; with the folder `benchmarks` on the path it is `twin`.
"""
