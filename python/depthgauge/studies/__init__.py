"""Studies: small experiments with published figures, written with the public functions alone."""
