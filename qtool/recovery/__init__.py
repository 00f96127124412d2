"""What changes a model on its way to integers: the steps of a conversion."""
