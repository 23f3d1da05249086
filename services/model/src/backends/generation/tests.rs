//! What transformers' `generate()` answered, token for token: see tests/models/generation.py.
