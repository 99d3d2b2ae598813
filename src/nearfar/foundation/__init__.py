"""What every part of nearfar stands on: files that appear whole or not at all, folders, and suggestions in errors.

It imports the standard library and `nearfar.errors`; platformdirs is imported where it is needed.
"""
