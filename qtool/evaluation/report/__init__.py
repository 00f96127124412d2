"""The report: collected measurements, the verdict, and the rendered pages."""
