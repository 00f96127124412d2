"""Loads datasets from folders and files: images, texts, sounds and arrays, in batches."""
