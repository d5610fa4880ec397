"""When each word is said, by the rows of a window that the model looked at while it wrote."""
