"""Checkpoints on disk: safetensors files, quantised formats, and which tensors a model has."""

from kdnb.checkpoint.folder import Shard, TensorFolder
from kdnb.checkpoint.layout import expected_tensors, is_ignored
from kdnb.checkpoint.stored import StoredTensor

__all__ = ["Shard", "StoredTensor", "TensorFolder", "expected_tensors", "is_ignored"]
