"""Layers: modules that own their parameters and call `tinynorm.functional`."""

from .activations import ELU, GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .blocks import PreNormBlock, PreNormMLP
from .containers import Identity, Sequential
from .dropout import Dropout
from .linear import Linear
from .module import Module, Parameter
from .norms import LayerNorm, RMSNorm

__all__ = [
    "ELU", "Dropout", "GELU", "Identity", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "Module", "Parameter",
    "PreNormBlock", "PreNormMLP", "RMSNorm", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh",
]  # fmt: skip
