"""nearfar: deep metric learning on PyTorch, every loss of the field run by one exact engine."""

__version__ = "0.1.0"
