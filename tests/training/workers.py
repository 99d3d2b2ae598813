"""What processes are told to do that `launch` starts; this imports little, as each of them imports it."""

import os


def second_fails() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second cannot")
