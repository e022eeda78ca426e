"""Triton kernels for convolutions, poolings, norms and Adam of many models at once, each with parameters of its own."""

from cofair.engine.kernels.adam import adam
from cofair.engine.kernels.convolution import product, weight_gradient
from cofair.engine.kernels.norm import norm, norm_gradients
from cofair.engine.kernels.pooling import pool, pool_gradient

__all__ = ["adam", "norm", "norm_gradients", "pool", "pool_gradient", "product", "weight_gradient"]
