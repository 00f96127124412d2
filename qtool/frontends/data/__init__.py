"""Datasets from folders and files: images, texts, sound and tables of arrays, in batches."""
