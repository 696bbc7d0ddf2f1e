"""What all areas share: checks of arguments, reading of arrays, and results."""
