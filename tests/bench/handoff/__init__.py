"""Tests of bench.handoff."""
