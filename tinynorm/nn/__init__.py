"""Layers: modules that own their parameters and call `tinynorm.functional`."""

from .activations import ELU, GELU, LeakyReLU, ReLU, Sigmoid, SiLU, Softplus, Tanh
from .blocks import PreNormBlock, PreNormMLP
from .containers import Identity, Sequential
from .dropout import Dropout
from .linear import Linear
from .module import Module, Parameter
from .norms import LayerNorm, RMSNorm

__all__ = [
    "ELU", "Dropout", "GELU", "Identity", "LayerNorm", "LeakyReLU", "Linear", "Module", "Parameter", "PreNormBlock",
    "PreNormMLP", "RMSNorm", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softplus", "Tanh",
]  # fmt: skip
