"""The report: measurements collected, the verdict, and the pages made of them."""
