"""`nearfar env`."""

import argparse
import json
from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """Print versions and machine."""
    parser = argparse.ArgumentParser(prog="nearfar env", description="Versions and machine, for reports.")
    parser.parse_args(words)
    from nearfar.training.environment import environment

    print(json.dumps(environment(), indent=2))
    return 0
