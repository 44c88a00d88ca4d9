"""Names of natural clients: the users of the dataset, such as hospitals or writers."""

from collections.abc import Collection, Sequence

import numpy as np

from fedexp.drawing.texts import printable

_SHOWN = 5
"""Number of clients that a message names."""


def client_names(
    users: np.ndarray | None, clients: Sequence[np.ndarray], user_names: Sequence[str] = ()
) -> list[str] | None:
    """The user whose samples each client has; "" for a client without samples.

    Args:
        users: [n] user of each training sample; None if unknown.
        clients: for each client, the positions of its samples in ``users``.
        user_names: if ``users`` holds numbers, the name of each number; otherwise empty.

    Returns:
        The name of each client. None if users are unknown or a client has samples of several users,
        so that clients are not users.
    """
    if users is None:
        return None
    found, user = np.unique(users, return_inverse=True)
    own = [user[index] for index in clients]
    if any(len(each) and (each != each[0]).any() for each in own):
        return None
    names = [user_names[number] for number in found] if user_names else [*map(str, found)]
    return [names[each[0]] if len(each) else "" for each in own]


def called(client: int, names: Sequence[str] | None) -> str:
    """A client's number, and its name if it has one, for messages: ``3 (ann)``."""
    return f"{client} ({printable(names[client])})" if names and names[client] else str(client)


def listed(clients: Collection[int], names: Sequence[str] | None) -> str:
    """The first clients by number and name, and how many others: ``3 (ann) and 7 more``."""
    shown = [called(client, names) for client in clients][:_SHOWN]
    more = len(clients) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
