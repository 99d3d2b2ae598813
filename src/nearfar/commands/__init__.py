"""The commands of `nearfar`, one module each, with `run(arguments) -> exit code`."""
