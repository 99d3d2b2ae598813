"""The commands of `nearfar`, one module each, with `run(words) -> exit code`."""
