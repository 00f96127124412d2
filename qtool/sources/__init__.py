"""Models and data as people have them: names, files, folders, images, texts, sound."""

from qtool.sources.data import load_data
from qtool.sources.models import load_model
from qtool.sources.named import import_object
from qtool.sources.weights import load_weights

__all__ = ["import_object", "load_data", "load_model", "load_weights"]
