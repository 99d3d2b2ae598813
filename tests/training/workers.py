"""What processes are told to do that `launch` starts; this imports little, as each of them imports it."""

import os

from nearfar.errors import InputError


def second_refuses() -> None:
    if os.environ["RANK"] == "1":
        raise InputError("the second cannot: give it less")


def second_has_a_bug() -> None:
    if os.environ["RANK"] == "1":
        int("the second")


def second_is_killed() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)
