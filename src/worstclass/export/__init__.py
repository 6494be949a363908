"""A run as a folder for others: weights as safetensors, ONNX or for timm, and a model card."""

from worstclass.export.formats import load_export
from worstclass.export.write import export_run

__all__ = ["export_run", "load_export"]
