"""Tests of what needs torch."""
