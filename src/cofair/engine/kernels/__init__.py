"""Triton kernels for the convolutions, poolings and norms of many models at once, each with parameters of its own."""

from cofair.engine.kernels.convolution import product, weight_gradient
from cofair.engine.kernels.norm import norm, norm_gradients
from cofair.engine.kernels.pooling import pool, pool_gradient

__all__ = ["norm", "norm_gradients", "pool", "pool_gradient", "product", "weight_gradient"]
