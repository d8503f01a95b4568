"""Tests of `tessera why`'s diagnosis."""
