"""What is read of the files of a model besides its weights."""
