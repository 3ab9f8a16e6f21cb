"""The boundary between C and the engine: C values to plain Python values and back."""
