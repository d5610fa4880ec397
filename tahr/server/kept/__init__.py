"""Files and batches as a folder keeps them, with bounds."""
