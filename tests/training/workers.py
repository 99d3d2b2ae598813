"""What processes are told to do that `launch` starts; this imports little, as each of them imports it."""

import os


def second_fails(how: str) -> None:
    if os.environ["RANK"] == "1":
        if how == "killed":
            os.kill(os.getpid(), 9)
        raise ValueError("the second cannot")
