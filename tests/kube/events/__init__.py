"""Tests of Events."""
