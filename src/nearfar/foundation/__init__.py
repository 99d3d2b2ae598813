"""Shared basics: atomic file writes, folders, the files of a run, durations, and suggestions in errors.

At import time it needs only the standard library and `nearfar.errors`.
"""
